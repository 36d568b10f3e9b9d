-- Turn expired leases into failed attempts: backed off and counted. The row is re-checked under its lock, so a lease
-- renewed meanwhile is let be, and so is one whose row was locked when its holder would have renewed it (see renew.sql).
-- Jobs at the cap are only picked here: closing a chain takes its lock first.
WITH policy AS MATERIALIZED (
    SELECT * FROM unnest(%(types)s::text[], %(max_attempts)s::int[], %(initials)s::float8[], %(multipliers)s::float8[],
                         %(maximums)s::float8[], %(jitters)s::float8[], %(max_crashes)s::int[])
        AS p (type, max_attempts, initial, multiplier, maximum, jitter, max_crashes)
),
extended AS MATERIALIZED (
    SELECT job_id, lease_token, expires_at FROM {schema}.lease_extension WHERE expires_at > clock_timestamp()
),
-- Long over: as many rows as leases that somebody's transaction has held up, so the table is read whole.
forgotten AS (
    DELETE FROM {schema}.lease_extension
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.lease_extension WHERE expires_at < clock_timestamp() - interval '1 minute'
        LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
),
expired AS MATERIALIZED (
    SELECT id, type, chain_id, attempt, uncounted, lease_expirations, lease_token, holder
    FROM {schema}.job
    WHERE status = 'running' AND type = ANY (%(types)s::text[]) AND lease_expires_at <= clock_timestamp()
        AND (id, lease_token) NOT IN (SELECT job_id, lease_token FROM extended)
    ORDER BY lease_expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
),
judged AS (
    SELECT expired.*, attempt - uncounted >= max_attempts OR lease_expirations + 1 >= max_crashes AS spent,
        CASE WHEN initial = 0 THEN 0
             WHEN (attempt - uncounted - 1) * ln(multiplier) > 100 THEN maximum
             ELSE least(maximum, initial * power(multiplier, attempt - uncounted - 1))
        END * (1 + jitter * random()) AS delay
    FROM expired JOIN policy USING (type)
),
returned AS (
    UPDATE {schema}.job
    SET status = CASE WHEN judged.delay > 0 THEN 'scheduled' ELSE 'ready' END,
        -- Without a pause it keeps its place in the order of those that are due.
        scheduled_at = CASE WHEN judged.delay > 0 THEN clock_timestamp() + judged.delay * interval '1 second'
                            ELSE scheduled_at END,
        lease_expirations = job.lease_expirations + 1,
        lease_token = NULL,
        lease_expires_at = NULL,
        error = jsonb_build_object('kind', 'lease_expired', 'message',
            'the lease of worker ' || coalesce(judged.holder, '?') || ' expired: it crashed, froze or lost the database')
    FROM judged
    WHERE job.id = judged.id AND NOT judged.spent
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at, job.holder, job.error
),
noted AS (
    INSERT INTO {schema}.job_event
        (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, worker, error)
    SELECT 'lease_expired', status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at,
        holder, error
    FROM returned
    WHERE coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = returned.type),
                   (SELECT level FROM {schema}.event_log)) = 'all'
),
following AS (
    -- Of the leases that are left; one that has expired is locked by somebody just now.
    SELECT extract(epoch FROM least(min(lease_expires_at), (SELECT min(expires_at) FROM extended))
        - clock_timestamp())::float8 AS seconds
    FROM {schema}.job
    WHERE status = 'running' AND type = ANY (%(types)s::text[]) AND id NOT IN (SELECT id FROM expired)
        AND (id, lease_token) NOT IN (SELECT job_id, lease_token FROM extended)
)
SELECT judged.id, judged.type, judged.chain_id, returned.status, judged.attempt, judged.holder, judged.lease_token,
    following.seconds
FROM judged LEFT JOIN returned USING (id) RIGHT JOIN following ON true
