-- The person whom a row is about. Its key is a row of sealwire.objects, in collection 2147483647 of the app.
ALTER TABLE sealwire.tokens ADD COLUMN subject bytea;
CREATE INDEX tokens_subject ON sealwire.tokens (app, subject, collection, id) WHERE subject IS NOT NULL;
-- Building an index sets the number of rows, so statistics are made again, for the reason that migration 4 gives.
INSERT INTO sealwire.tokens (app, collection, id, fingerprint, sealed, created, subject)
    SELECT -1, -1, int4send(n), int4send(n), '', 0, CASE WHEN n % 10 = 0 THEN int4send(n) END
    FROM generate_series(1, 300) AS n;
ANALYZE sealwire.tokens;
DELETE FROM sealwire.tokens WHERE app = -1;
