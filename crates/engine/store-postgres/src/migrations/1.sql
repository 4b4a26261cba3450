-- Token maps. Keys begin with the app, so that the table can be spread over machines by it.
CREATE TABLE sealwire.tokens (
    app         int4   NOT NULL,
    collection  int4   NOT NULL,
    id          bytea  NOT NULL,
    fingerprint bytea,
    sealed      bytea  NOT NULL,
    tags        text[],
    expires     int8,
    created     int8   NOT NULL,
    archived    int8,
    PRIMARY KEY (app, collection, id)
);
CREATE UNIQUE INDEX tokens_fingerprint ON sealwire.tokens (app, collection, fingerprint)
    WHERE fingerprint IS NOT NULL;

-- Control state: one row with the generation, and the records that it is the generation of.
CREATE TABLE sealwire.control (
    one        bool NOT NULL PRIMARY KEY CHECK (one),
    generation int8 NOT NULL
);
INSERT INTO sealwire.control (one, generation) VALUES (true, 0);
CREATE TABLE sealwire.records (
    key    text  NOT NULL PRIMARY KEY,
    record bytea NOT NULL
);
CREATE TABLE sealwire.instances (
    id         text        NOT NULL PRIMARY KEY,
    address    text        NOT NULL,
    version    text        NOT NULL,
    generation int8        NOT NULL,
    seen       timestamptz NOT NULL
);
