-- Before the server has statistics it takes each of many indexes that begin with app and collection for equally good, and
-- a plan can then read every row of a collection to find one. So statistics are made of rows that are removed again. They
-- say what leads to the index with the whole key: app and collection tell no two rows apart. Later statistics say so, too.
ALTER TABLE sealwire.tokens
    ALTER COLUMN app SET (n_distinct = 1), ALTER COLUMN collection SET (n_distinct = 1);
INSERT INTO sealwire.tokens (app, collection, id, fingerprint, sealed, created)
    SELECT -1, -1, int4send(n), int4send(n), '', 0 FROM generate_series(1, 300) AS n;
ANALYZE sealwire.tokens;
DELETE FROM sealwire.tokens WHERE app = -1;
