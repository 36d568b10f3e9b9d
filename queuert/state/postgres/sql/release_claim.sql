-- Give back all that one claim took and nobody started, found by its token among the running jobs of its types. A row that
-- some transaction has locked is passed over, and its lease runs out: the worker's next claim comes after this.
WITH free AS MATERIALIZED (
    SELECT id FROM {schema}.job
    WHERE status = 'running' AND type = ANY (%(types)s::text[]) AND lease_token = %(token)s::uuid
    FOR NO KEY UPDATE SKIP LOCKED
),
done AS (
    UPDATE {schema}.job
    SET status = 'ready', attempt = attempt - 1, lease_token = NULL, lease_expires_at = NULL
    FROM free
    WHERE job.id = free.id
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at, job.holder
),
noted AS (
    INSERT INTO {schema}.job_event
        (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, worker, error)
    SELECT 'released', status, id, chain_id, chain_index, type, chain_type, attempt + 1, scheduled_at, started_at,
        holder, NULL
    FROM done
    WHERE coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = done.type),
                   (SELECT level FROM {schema}.event_log)) = 'all'
)
SELECT id FROM done
