-- Fail jobs whose lease expired on their last attempt, and close their chains. The chains were locked before.
WITH done AS (
    UPDATE {schema}.job
    SET status = 'failed',
        finished_at = clock_timestamp(),
        completed_tx = pg_current_xact_id(),
        chain_status = CASE WHEN chain_index = 0 THEN 'failed' END,
        chain_closed_at = CASE WHEN chain_index = 0 THEN clock_timestamp() END,
        expires_at = CASE WHEN chain_index = 0 THEN clock_timestamp() + result_ttl * interval '1 second' END,
        lease_expirations = job.lease_expirations + 1,
        lease_token = NULL,
        lease_expires_at = NULL,
        error = jsonb_build_object('kind', 'lease_expired', 'message',
            'the lease of worker ' || coalesce(holder, '?') || ' expired'
            || CASE WHEN job.lease_expirations > 0
                THEN ', and the job has expired ' || job.lease_expirations + 1
                    || ' times: it may be what kills its workers'
                ELSE ' on the last attempt' END)
    FROM unnest(%(ids)s::text[], %(tokens)s::uuid[]) AS asked (id, token)
    WHERE job.id = asked.id AND job.lease_token = asked.token AND job.lease_expires_at <= clock_timestamp()
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at, job.holder, job.error
),
closed AS (
    UPDATE {schema}.job
    SET chain_status = 'failed', chain_closed_at = clock_timestamp(), completed_tx = pg_current_xact_id(),
        expires_at = clock_timestamp() + result_ttl * interval '1 second'
    FROM done WHERE job.id = done.chain_id AND done.chain_index > 0
),
noted AS (
    INSERT INTO {schema}.job_event
        (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, worker, error)
    SELECT 'lease_expired', status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at,
        holder, error
    FROM done
    WHERE coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = done.type),
                   (SELECT level FROM {schema}.event_log)) <> 'off'
)
SELECT id FROM done
