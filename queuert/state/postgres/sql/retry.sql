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
        lease_token = NULL
    WHERE id = ANY (%(tails)s::text[])
    RETURNING id, chain_id, chain_index, blocker_count
),
opened AS (
    UPDATE {schema}.job
    SET chain_status = 'open', expires_at = NULL, chain_closed_at = NULL
    FROM done
    WHERE job.id = done.chain_id AND done.chain_index > 0
)
SELECT id FROM done WHERE blocker_count > 0
