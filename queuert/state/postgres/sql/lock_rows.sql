-- Lock jobs, and chains by their first job, the oldest first, and note that jobs are about to wait for some of the
-- chains. Whoever closes a chain takes the same lock first, so the two cannot miss each other. With the chains that are
-- about to close (`closing`) go the jobs that wait for them: a job that has started what it waits for is older than that.
WITH locked AS MATERIALIZED (
    SELECT id, chain_index FROM {schema}.job
    WHERE id = ANY (%(rows)s::text[] || ARRAY(
        SELECT entry.job_id
        FROM unnest(%(closing)s::text[]) AS about (id)
        CROSS JOIN LATERAL (
            SELECT job_id FROM {schema}.job_blocker WHERE blocker_chain_id = about.id AND NOT closed OFFSET 0
        ) AS entry))
    ORDER BY created_at, id FOR NO KEY UPDATE
),
noted AS (
    UPDATE {schema}.job SET has_dependents = true
    FROM locked
    WHERE job.id = locked.id AND locked.id = ANY (%(awaited)s::text[]) AND NOT job.has_dependents
)
SELECT id FROM locked WHERE chain_index = 0
