-- Release blocked jobs that wait for nothing any more, and set their entries right. They are locked, and looked at once more.
WITH stranded AS MATERIALIZED (
    SELECT asked.id
    FROM unnest(%(ids)s::text[]) AS asked (id)
    WHERE NOT EXISTS (
        SELECT FROM {schema}.job_blocker
        WHERE job_id = asked.id AND NOT closed
            AND (SELECT chain_status FROM {schema}.job AS chain WHERE chain.id = blocker_chain_id) = 'open')
),
marked AS (
    UPDATE {schema}.job_blocker SET closed = true FROM stranded WHERE job_id = stranded.id AND NOT closed
),
done AS (
    UPDATE {schema}.job
    SET status = CASE WHEN scheduled_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END,
        scheduled_at = greatest(scheduled_at, clock_timestamp()),
        open_blockers = 0
    FROM stranded
    WHERE job.id = stranded.id AND job.status = 'blocked'
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at
),
noted AS (
    INSERT INTO {schema}.job_event
        (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, worker, error)
    SELECT 'unblocked', status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at,
        NULL, NULL
    FROM done
    WHERE coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = done.type),
                   (SELECT level FROM {schema}.event_log)) = 'all'
)
SELECT id, type FROM done
