-- Cancel the last jobs of chains, and the chains with them. All are locked and known to be open. Without its token a
-- running attempt cannot end any more.
WITH done AS (
    UPDATE {schema}.job
    SET status = 'cancelled',
        finished_at = clock_timestamp(),
        chain_status = CASE WHEN chain_index = 0 THEN 'cancelled' END,
        chain_closed_at = CASE WHEN chain_index = 0 THEN clock_timestamp() END,
        expires_at = CASE WHEN chain_index = 0 THEN clock_timestamp() + result_ttl * interval '1 second' END,
        lease_token = NULL,
        lease_expires_at = NULL,
        completed_tx = pg_current_xact_id(),
        error = jsonb_build_object('kind', 'cancel', 'message', %(reason)s::text)
    WHERE id = ANY (%(tails)s::text[])
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at, job.error
),
closed AS (
    UPDATE {schema}.job
    SET chain_status = 'cancelled', chain_closed_at = clock_timestamp(), completed_tx = pg_current_xact_id(),
        expires_at = clock_timestamp() + result_ttl * interval '1 second'
    FROM done
    WHERE job.id = done.chain_id AND done.chain_index > 0
),
noted AS (
    INSERT INTO {schema}.job_event
        (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, worker, error)
    SELECT 'cancelled', status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at,
        NULL, error
    FROM done
    WHERE coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = done.type),
                   (SELECT level FROM {schema}.event_log)) <> 'off'
)
SELECT id FROM done
