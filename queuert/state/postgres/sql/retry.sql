-- Open closed chains again: their last jobs are due now, and none of their attempts so far counts. The last error stays to be
-- read. All are locked and known to have failed or to be cancelled. Whether they must wait again is looked at afterwards.
WITH done AS (
    UPDATE {schema}.job
    SET status = 'ready',
        scheduled_at = clock_timestamp(),
        finished_at = NULL,
        chain_status = CASE WHEN chain_index = 0 THEN 'open' END,
        chain_closed_at = NULL,
        expires_at = NULL,
        uncounted = attempt,
        lease_expirations = 0,
        open_blockers = 0,
        lease_token = NULL,
        completed_tx = NULL
    WHERE id = ANY (%(tails)s::text[])
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at, job.blocker_count
),
opened AS (
    UPDATE {schema}.job
    SET chain_status = 'open', expires_at = NULL, chain_closed_at = NULL, completed_tx = NULL
    FROM done
    WHERE job.id = done.chain_id AND done.chain_index > 0
),
noted AS (
    INSERT INTO {schema}.job_event
        (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, worker, error)
    SELECT 'retried_by_hand', status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at,
        NULL, NULL
    FROM done
    WHERE coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = done.type),
                   (SELECT level FROM {schema}.event_log)) <> 'off'
)
SELECT id FROM done WHERE blocker_count > 0
