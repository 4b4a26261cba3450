-- Control records that are read one by one, of which there may be very many. As bytes, so that every database has them in
-- the same order.
CREATE TABLE sealwire.single_records (
    key    bytea NOT NULL PRIMARY KEY,
    record bytea NOT NULL
);
