-- Complete one attempt whose job this transaction has locked, the only job of its chain: sent together with COMMIT, so that it
-- must fail if it writes nothing. It divides by the number of rows that it wrote, and the transaction rolls back.
WITH done AS (
    UPDATE {schema}.job
    SET status = 'completed',
        chain_status = 'completed',
        lease_expires_at = NULL,
        finished_at = clock_timestamp(),
        completed_tx = pg_current_xact_id(),
        chain_closed_at = clock_timestamp(),
        expires_at = clock_timestamp() + result_ttl * interval '1 second',
        output = %(output)s::jsonb,
        error = NULL
    WHERE id = %(id)s AND lease_token = %(token)s::uuid AND lease_expires_at IS NOT NULL
        AND chain_index = 0 AND NOT has_dependents
    RETURNING id, type, attempt, scheduled_at, started_at, holder
),
noted AS (
    INSERT INTO {schema}.job_event
        (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, worker)
    SELECT 'completed', 'completed', id, id, 0, type, type, attempt, scheduled_at, started_at, holder
    FROM done
    -- The level of each type, looked up once for all rows.
    WHERE CASE WHEN (SELECT level FROM {schema}.event_log) <> 'off'
        THEN type <> ALL (ARRAY(SELECT type FROM {schema}.event_level WHERE level = 'off'))
        ELSE type = ANY (ARRAY(SELECT type FROM {schema}.event_level WHERE level <> 'off')) END
)
SELECT 1 / count(*) FROM done
