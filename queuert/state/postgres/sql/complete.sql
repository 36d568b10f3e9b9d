-- Complete attempts of the only jobs of their chains, each while its token holds it: what most endings are. Rows that another
-- transaction has locked are left out, and so are chains that other jobs wait for: the general statement is for those.
-- Tokens and outputs are looked up by the job's id, in one JSON object: there is no join that could be planned badly. Nobody is
-- waited for, so no order of locks is needed.
WITH done AS (
    UPDATE {schema}.job
    SET status = 'completed',
        chain_status = 'completed',
        lease_expires_at = NULL,
        finished_at = clock_timestamp(),
        completed_tx = pg_current_xact_id(),
        chain_closed_at = clock_timestamp(),
        expires_at = clock_timestamp() + result_ttl * interval '1 second',
        output = %(asked)s::jsonb -> id -> 1,
        error = NULL
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.job
        WHERE id = ANY (ARRAY(SELECT jsonb_object_keys(%(asked)s::jsonb)))
            AND lease_token = (%(asked)s::jsonb -> id ->> 0)::uuid AND lease_expires_at IS NOT NULL
            AND chain_index = 0 AND NOT has_dependents
        FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING id, type, attempt, scheduled_at, started_at, holder
),
noted AS (
    INSERT INTO {schema}.job_event
        (kind, status, chain_index, type, chain_type, attempt, worker, job_ids, scheduled_ats, started_ats)
    SELECT 'completed', 'completed', 0, type, type, attempt, holder,
        array_agg(id), array_agg(scheduled_at), array_agg(started_at)
    FROM (
        SELECT *, row_number() OVER () AS place FROM done
        -- The level of each type, looked up once for all rows.
        WHERE CASE WHEN (SELECT level FROM {schema}.event_log) <> 'off'
            THEN type <> ALL (ARRAY(SELECT type FROM {schema}.event_level WHERE level = 'off'))
            ELSE type = ANY (ARRAY(SELECT type FROM {schema}.event_level WHERE level <> 'off')) END
    ) AS event
    GROUP BY place / {events_a_row}, type, attempt, holder ORDER BY min(place)
)
SELECT id FROM done
