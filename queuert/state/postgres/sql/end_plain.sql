-- End attempts that need nothing but their own row: completions and failures of the only jobs of their chains, and attempts
-- that are to be tried again. A flood of failures, and what completes beside it, costs little more than completions alone.
-- Guarded, looked up and left out as by the statement for completions, and without an order of locks for the same reason.
WITH completed AS (
    UPDATE {schema}.job
    SET status = 'completed',
        chain_status = 'completed',
        lease_expires_at = NULL,
        finished_at = clock_timestamp(),
        completed_tx = pg_current_xact_id(),
        chain_closed_at = clock_timestamp(),
        expires_at = clock_timestamp() + result_ttl * interval '1 second',
        output = %(completed)s::jsonb -> id -> 1,
        error = NULL
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.job
        WHERE id = ANY (ARRAY(SELECT jsonb_object_keys(%(completed)s::jsonb)))
            AND lease_token = (%(completed)s::jsonb -> id ->> 0)::uuid AND lease_expires_at IS NOT NULL
            AND chain_index = 0 AND NOT has_dependents
        FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING id, lease_token, status, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, holder,
        error
),
-- Of each the token, the seconds to the next attempt (null: there is none), how often its process died, the error if there is
-- one.
failed AS (
    UPDATE {schema}.job
    SET status = CASE WHEN (%(failed)s::jsonb -> id ->> 1)::float8 > 0 THEN 'scheduled'
                      WHEN (%(failed)s::jsonb -> id ->> 1) IS NOT NULL THEN 'ready'
                      ELSE 'failed' END,
        chain_status = CASE WHEN (%(failed)s::jsonb -> id ->> 1) IS NULL THEN 'failed' ELSE chain_status END,
        lease_expires_at = NULL,
        finished_at = CASE WHEN (%(failed)s::jsonb -> id ->> 1) IS NULL THEN clock_timestamp() END,
        completed_tx = CASE WHEN (%(failed)s::jsonb -> id ->> 1) IS NULL THEN pg_current_xact_id() END,
        chain_closed_at = CASE WHEN (%(failed)s::jsonb -> id ->> 1) IS NULL THEN clock_timestamp() END,
        expires_at = CASE WHEN (%(failed)s::jsonb -> id ->> 1) IS NULL
            THEN clock_timestamp() + result_ttl * interval '1 second' END,
        scheduled_at = CASE WHEN (%(failed)s::jsonb -> id ->> 1) IS NULL THEN scheduled_at
            ELSE clock_timestamp() + (%(failed)s::jsonb -> id ->> 1)::float8 * interval '1 second' END,
        lease_expirations = lease_expirations + (%(failed)s::jsonb -> id ->> 2)::int,
        error = %(failed)s::jsonb -> id -> 3
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.job
        WHERE id = ANY (ARRAY(SELECT jsonb_object_keys(%(failed)s::jsonb)))
            AND lease_token = (%(failed)s::jsonb -> id ->> 0)::uuid AND lease_expires_at IS NOT NULL
            AND ((%(failed)s::jsonb -> id ->> 1) IS NOT NULL OR chain_index = 0 AND NOT has_dependents)
        FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING id, lease_token, status, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, holder,
        error
),
done AS (
    SELECT 'completed' AS kind, * FROM completed
    UNION ALL
    SELECT CASE status WHEN 'failed' THEN 'failed' ELSE 'retried' END, * FROM failed
),
noted AS (
    INSERT INTO {schema}.job_event
        (kind, status, chain_index, type, chain_type, attempt, worker, error, job_ids, chain_ids, scheduled_ats, started_ats)
    SELECT kind, status, chain_index, type, chain_type, attempt, holder, error,
        array_agg(id), array_agg(chain_id) FILTER (WHERE chain_index > 0), array_agg(scheduled_at), array_agg(started_at)
    FROM (
        SELECT *, row_number() OVER () AS place FROM done
        -- The level of each type, looked up once for all rows: of an attempt that is followed by another it must be the highest.
        WHERE CASE
            WHEN kind = 'retried' AND (SELECT level FROM {schema}.event_log) = 'all'
                THEN type <> ALL (ARRAY(SELECT type FROM {schema}.event_level WHERE level <> 'all'))
            WHEN kind = 'retried' THEN type = ANY (ARRAY(SELECT type FROM {schema}.event_level WHERE level = 'all'))
            WHEN (SELECT level FROM {schema}.event_log) <> 'off'
                THEN type <> ALL (ARRAY(SELECT type FROM {schema}.event_level WHERE level = 'off'))
            ELSE type = ANY (ARRAY(SELECT type FROM {schema}.event_level WHERE level <> 'off')) END
    ) AS event
    GROUP BY place / {events_a_row}, kind, status, chain_index, type, chain_type, attempt, holder, error ORDER BY min(place)
)
SELECT id, lease_token::text, status FROM done
