-- Lock chains in the order of their ids, before anything of their jobs is touched, and note that jobs wait for them.
-- Whoever closes a chain takes the same lock first, so the two cannot miss each other.
WITH locked AS MATERIALIZED (
    SELECT id FROM {schema}.job
    WHERE id = ANY (%(chains)s::text[]) AND chain_index = 0
    ORDER BY id FOR NO KEY UPDATE
),
noted AS (
    UPDATE {schema}.job SET has_dependents = true
    FROM locked
    WHERE job.id = locked.id AND locked.id = ANY (%(awaited)s::text[]) AND NOT job.has_dependents
    RETURNING job.id
)
SELECT locked.id FROM locked LEFT JOIN noted USING (id)
