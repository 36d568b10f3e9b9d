-- Hold the slots of deduplication keys to the end of the transaction: who comes second waits for its outcome. A slot is
-- nothing but that lock. What stands in for a new chain is looked up in a later statement, whose snapshot is younger.
INSERT INTO {schema}.deduplication (type, key)
SELECT type, key FROM unnest(%(types)s::text[], %(keys)s::text[]) AS asked (type, key)
ORDER BY type COLLATE "C", key COLLATE "C"
ON CONFLICT (type, key) DO UPDATE SET taken = deduplication.taken + 1
RETURNING type
