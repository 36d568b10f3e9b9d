-- Make scheduled jobs due. One whose time has come keeps its place in the order of those that are due.
WITH done AS (
    UPDATE {schema}.job
    SET status = 'ready', scheduled_at = least(scheduled_at, clock_timestamp())
    WHERE id = ANY (%(ids)s::text[]) AND status = 'scheduled'
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at
),
noted AS (
    INSERT INTO {schema}.job_event
        (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, worker, error)
    SELECT 'triggered', status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at,
        NULL, NULL
    FROM done
    WHERE coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = done.type),
                   (SELECT level FROM {schema}.event_log)) = 'all'
)
SELECT id FROM done
