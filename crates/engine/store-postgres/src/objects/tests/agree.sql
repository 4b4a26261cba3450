-- Counts terms of objects that do not lead to their object, and terms that lead to an object without them.
WITH own AS (
    SELECT t.app, t.collection, t.id, get_byte(t.terms, 21 * n) AS place, substr(t.terms, 21 * n + 2, 4) AS number,
        substr(t.terms, 21 * n + 6, 16) AS hash
    FROM sealwire.objects t, generate_series(0, octet_length(t.terms) / 21 - 1) AS n
), held AS (
    SELECT app, collection, id, 1, int4send(index_number::int4), hash FROM sealwire.object_unique
    UNION ALL SELECT app, collection, id, 0, int4send(index_number::int4), hash FROM sealwire.object_terms
)
SELECT (SELECT count(*) FROM (TABLE own EXCEPT TABLE held) AS missing)
    + (SELECT count(*) FROM (TABLE held EXCEPT TABLE own) AS extra)
