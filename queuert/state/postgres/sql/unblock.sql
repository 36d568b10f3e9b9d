-- Release the jobs that waited for chains which have closed. Runs after the statement that closed them, in its
-- transaction: a snapshot taken before the chain was locked could miss a job that had just begun to wait.
WITH marked AS (
    UPDATE {schema}.job_blocker SET closed = true
    FROM {schema}.job AS chain
    WHERE blocker_chain_id = ANY (%(chains)s::text[]) AND NOT closed
        AND chain.id = blocker_chain_id AND chain.chain_status <> 'open'
    RETURNING job_id
),
counted AS (
    SELECT job_id, count(*) AS closed FROM marked GROUP BY job_id
),
locked AS MATERIALIZED (
    SELECT id FROM {schema}.job WHERE id IN (SELECT job_id FROM counted) ORDER BY created_at, id FOR NO KEY UPDATE
)
UPDATE {schema}.job
SET open_blockers = open_blockers - counted.closed,
    scheduled_at = CASE WHEN open_blockers = counted.closed AND status = 'blocked' THEN greatest(scheduled_at, clock_timestamp())
                        ELSE scheduled_at END,
    status = CASE WHEN open_blockers > counted.closed OR status <> 'blocked' THEN status
                  WHEN scheduled_at > clock_timestamp() THEN 'scheduled'
                  ELSE 'ready' END
FROM locked JOIN counted ON counted.job_id = locked.id
WHERE job.id = locked.id
RETURNING job.type, job.status
