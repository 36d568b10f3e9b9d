-- Lock jobs, and chains by their first job, the oldest first, and note that jobs are about to wait for some of the
-- chains. Oldest first because a chain is older than what waits for it, and is locked before it everywhere. Whoever closes a chain takes the same lock first, so the two cannot miss each other.
WITH locked AS MATERIALIZED (
    SELECT id, chain_index FROM {schema}.job WHERE id = ANY (%(rows)s::text[]) ORDER BY created_at, id FOR NO KEY UPDATE
),
noted AS (
    UPDATE {schema}.job SET has_dependents = true
    FROM locked
    WHERE job.id = locked.id AND locked.id = ANY (%(awaited)s::text[]) AND NOT job.has_dependents
)
SELECT id FROM locked WHERE chain_index = 0
