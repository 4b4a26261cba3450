-- Objects of collections: one row per object with all sealed properties, and rows of terms that lead to it. Keys begin with
-- the app. The column terms repeats the rows of terms, so that they can be removed without the keys of the terms.
CREATE TABLE sealwire.objects (
    app        int4  NOT NULL,
    collection int4  NOT NULL,
    id         bytea NOT NULL,
    version    int8  NOT NULL,
    created    int8  NOT NULL,
    updated    int8  NOT NULL,
    expires    int8,
    archived   int8,
    subject    bytea,
    key        bytea NOT NULL,
    tags       text[],
    terms      bytea NOT NULL,
    sealed     bytea NOT NULL,
    PRIMARY KEY (app, collection, id)
) WITH (fillfactor = 90);
-- Sealed bytes cannot be compressed.
ALTER TABLE sealwire.objects ALTER COLUMN sealed SET STORAGE EXTERNAL;
CREATE INDEX objects_subject ON sealwire.objects (app, subject, collection, id) WHERE subject IS NOT NULL;
-- Objects that are due to be archived or removed are found without reading the others.
CREATE INDEX objects_expires ON sealwire.objects (app, collection, expires, id)
    WHERE expires IS NOT NULL AND archived IS NULL;
CREATE INDEX objects_archived ON sealwire.objects (app, collection, archived, id) WHERE archived IS NOT NULL;

-- Terms that at most one object of a collection can hold. Numbers of indexes exceed int4.
CREATE TABLE sealwire.object_unique (
    app          int4  NOT NULL,
    collection   int4  NOT NULL,
    index_number int8  NOT NULL,
    hash         bytea NOT NULL,
    id           bytea NOT NULL,
    PRIMARY KEY (app, collection, index_number, hash)
);
-- Other terms.
CREATE TABLE sealwire.object_terms (
    app          int4  NOT NULL,
    collection   int4  NOT NULL,
    index_number int8  NOT NULL,
    hash         bytea NOT NULL,
    id           bytea NOT NULL,
    PRIMARY KEY (app, collection, index_number, hash, id)
);
-- The lowest generation of control state with which an engine can use a collection.
CREATE TABLE sealwire.object_fences (
    app        int4 NOT NULL,
    collection int4 NOT NULL,
    generation int8 NOT NULL,
    PRIMARY KEY (app, collection)
);

-- Statistics for the first plans, for the reason that migration 4 gives.
ALTER TABLE sealwire.objects
    ALTER COLUMN app SET (n_distinct = 1), ALTER COLUMN collection SET (n_distinct = 1);
INSERT INTO sealwire.objects (app, collection, id, version, created, updated, expires, archived, key, terms, sealed)
    SELECT -1, -1, int4send(n), 1, 0, 0, n, CASE WHEN n % 2 = 0 THEN n END, '', '', '' FROM generate_series(1, 300) AS n;
INSERT INTO sealwire.object_unique (app, collection, index_number, hash, id)
    SELECT -1, -1, 1, int4send(n), int4send(n) FROM generate_series(1, 300) AS n;
INSERT INTO sealwire.object_terms (app, collection, index_number, hash, id)
    SELECT -1, -1, 1, int4send(n / 3), int4send(n) FROM generate_series(1, 300) AS n;
ANALYZE sealwire.objects;
ANALYZE sealwire.object_unique;
ANALYZE sealwire.object_terms;
DELETE FROM sealwire.objects WHERE app = -1;
DELETE FROM sealwire.object_unique WHERE app = -1;
DELETE FROM sealwire.object_terms WHERE app = -1;
