-- Jobs that still wait for other chains wait for the reopened ones again. Those that were released are let be: they have
-- reacted already. The reopened chains are locked, so that none of them closes beside this.
WITH waiting AS MATERIALIZED (
    SELECT id FROM {schema}.job
    WHERE status = 'blocked' AND id IN (
        SELECT job_id FROM {schema}.job_blocker WHERE blocker_chain_id = ANY (%(chains)s::text[]) AND closed
    )
    ORDER BY created_at, id FOR NO KEY UPDATE
),
reopened AS (
    UPDATE {schema}.job_blocker SET closed = false
    FROM waiting
    WHERE job_id = waiting.id AND blocker_chain_id = ANY (%(chains)s::text[]) AND closed
    RETURNING job_id
),
counted AS (
    SELECT job_id, count(*) AS count FROM reopened GROUP BY job_id
)
UPDATE {schema}.job SET open_blockers = open_blockers + counted.count
FROM counted
WHERE job.id = counted.job_id
RETURNING job.id
