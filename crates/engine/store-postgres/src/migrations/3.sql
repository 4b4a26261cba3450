-- Rows that are due to be archived or removed are found without reading the others.
CREATE INDEX tokens_expires ON sealwire.tokens (app, collection, expires)
    WHERE expires IS NOT NULL AND archived IS NULL;
CREATE INDEX tokens_archived ON sealwire.tokens (app, collection, archived) WHERE archived IS NOT NULL;

-- Work that one engine at a time does, and until when that engine has it.
CREATE TABLE sealwire.leases (
    name   text        NOT NULL PRIMARY KEY,
    holder text        NOT NULL,
    until  timestamptz NOT NULL
);
