-- Let jobs wait for chains that are locked by this transaction; those that have closed already count as closed. A job that
-- waits again has blockers already: the new ones come after them, and one that it has is waited for once more if its chain
-- was opened again since.
WITH asked AS MATERIALIZED (
    SELECT b.*, chain.chain_status <> 'open' AS closed, entry.tid, entry.closed AS was_closed
    FROM json_to_recordset(%(blockers)s::json) AS b (job_id text, chain_id text, position int)
    JOIN {schema}.job AS chain ON chain.id = b.chain_id
    LEFT JOIN LATERAL (
        SELECT ctid AS tid, closed FROM {schema}.job_blocker
        WHERE blocker_chain_id = b.chain_id AND job_blocker.job_id = b.job_id OFFSET 0
    ) AS entry ON true
),
places AS MATERIALIZED (
    SELECT waiting.job_id, coalesce(last.position + 1, 0) AS first
    FROM (SELECT DISTINCT job_id FROM asked) AS waiting
    LEFT JOIN LATERAL (
        SELECT position FROM {schema}.job_blocker WHERE job_blocker.job_id = waiting.job_id
        ORDER BY position DESC LIMIT 1
    ) AS last ON true
),
added AS (
    INSERT INTO {schema}.job_blocker (job_id, blocker_chain_id, position, closed)
    SELECT asked.job_id, asked.chain_id, places.first + asked.position, asked.closed
    FROM asked JOIN places ON places.job_id = asked.job_id
    WHERE asked.tid IS NULL
    ON CONFLICT (blocker_chain_id, job_id) DO NOTHING
    RETURNING job_id, closed
),
reopened AS (
    UPDATE {schema}.job_blocker SET closed = false
    WHERE ctid = ANY (ARRAY(SELECT tid FROM asked WHERE was_closed AND NOT asked.closed))
    RETURNING job_id
),
counted AS (
    SELECT job_id, sum(total) AS total, sum(open) AS open
    FROM (
        SELECT job_id, 1 AS total, (NOT closed)::int AS open FROM added
        UNION ALL
        SELECT job_id, 0, 1 FROM reopened
    ) AS entry
    GROUP BY job_id
),
waiting AS (
    UPDATE {schema}.job
    SET blocker_count = blocker_count + counted.total,
        open_blockers = open_blockers + counted.open,
        status = CASE WHEN open_blockers + counted.open > 0 THEN 'blocked' ELSE status END
    FROM counted
    WHERE job.id = counted.job_id
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at
),
noted AS (
    INSERT INTO {schema}.job_event
        (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, worker, error)
    SELECT 'blocked', status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at,
        NULL, NULL
    FROM waiting
    WHERE status = 'blocked'
        AND coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = waiting.type),
                   (SELECT level FROM {schema}.event_log)) = 'all'
)
SELECT id, status FROM waiting
