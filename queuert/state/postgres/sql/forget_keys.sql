-- Remove the slots of deduplication keys that no chain has any more. A slot that somebody holds is left: a chain of that key
-- is being started just now.
DELETE FROM {schema}.deduplication
WHERE ctid = ANY (ARRAY(
    SELECT slot.ctid
    FROM unnest(%(types)s::text[], %(keys)s::text[]) AS gone (type, key)
    JOIN {schema}.deduplication AS slot ON slot.type = gone.type AND slot.key = gone.key
    WHERE NOT EXISTS (
        SELECT FROM {schema}.job WHERE job.type = gone.type AND job.deduplication_key = gone.key)
    FOR UPDATE OF slot SKIP LOCKED
))
RETURNING key
