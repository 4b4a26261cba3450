-- The person whom a row is about. Its key is a row of sealwire.objects, in collection 2147483647 of the app. The index
-- tokens_subject is built after the migration, while the table is in use.
ALTER TABLE sealwire.tokens ADD COLUMN subject bytea;
