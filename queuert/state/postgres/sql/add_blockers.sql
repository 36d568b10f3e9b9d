-- Let jobs wait for chains that are locked by this transaction; those that have closed already count as closed.
WITH asked AS (
    SELECT * FROM json_to_recordset(%(blockers)s::json) AS b (job_id text, chain_id text, position int)
),
added AS (
    INSERT INTO {schema}.job_blocker (job_id, blocker_chain_id, position, closed)
    SELECT asked.job_id, asked.chain_id, asked.position, chain.chain_status <> 'open'
    FROM asked JOIN {schema}.job AS chain ON chain.id = asked.chain_id
    ON CONFLICT (blocker_chain_id, job_id) DO NOTHING
    RETURNING job_id, closed
),
counted AS (
    SELECT job_id, count(*) AS total, count(*) FILTER (WHERE NOT closed) AS open FROM added GROUP BY job_id
)
UPDATE {schema}.job
SET blocker_count = blocker_count + counted.total,
    open_blockers = open_blockers + counted.open,
    status = CASE WHEN open_blockers + counted.open > 0 THEN 'blocked' ELSE status END
FROM counted
WHERE job.id = counted.job_id
RETURNING job.id, job.status
