-- Let retried jobs wait for those of their blockers that are open: again, or still. Chains are counted only if this
-- transaction has them locked, so that none of them closes beside this.
WITH reopened AS (
    UPDATE {schema}.job_blocker SET closed = false
    FROM {schema}.job AS chain
    WHERE job_blocker.job_id = ANY (%(tails)s::text[]) AND job_blocker.closed
        AND chain.id = blocker_chain_id AND chain.id = ANY (%(locked)s::text[]) AND chain.chain_status = 'open'
    RETURNING job_id
),
open AS (
    SELECT job_id, count(*) AS count
    FROM (
        SELECT job_id FROM {schema}.job_blocker WHERE job_id = ANY (%(tails)s::text[]) AND NOT closed
        UNION ALL
        SELECT job_id FROM reopened
    ) AS waiting
    GROUP BY job_id
),
waiting AS (
    UPDATE {schema}.job
    SET open_blockers = open.count, status = 'blocked'
    FROM open
    WHERE job.id = open.job_id
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at
),
noted AS (
    INSERT INTO {schema}.job_event
        (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, worker, error)
    SELECT 'blocked', status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at,
        NULL, NULL
    FROM waiting
    WHERE coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = waiting.type),
                   (SELECT level FROM {schema}.event_log)) = 'all'
)
SELECT id FROM waiting
