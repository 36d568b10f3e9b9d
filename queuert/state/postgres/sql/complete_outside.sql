-- End the last jobs of chains over the heads of their holders: with an output, which closes the chain, or by a continuation.
-- All are locked and known to be open. A job that was blocked keeps its count of open blockers, which goes on down.
WITH asked AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(completions)s::json) AS c (id text, output jsonb, next_id text)
),
following AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(continuations)s::json) AS n (
        id text, type text, priority int, delay float8, moment timestamptz, input jsonb, trace_context text, limit_key text)
),
done AS (
    UPDATE {schema}.job
    SET status = CASE WHEN asked.next_id IS NULL THEN 'completed' ELSE 'continued' END,
        finished_at = clock_timestamp(),
        completed_tx = pg_current_xact_id(),
        chain_status = CASE WHEN chain_index > 0 THEN NULL WHEN asked.next_id IS NULL THEN 'completed' ELSE 'open' END,
        chain_closed_at = CASE WHEN chain_index = 0 AND asked.next_id IS NULL THEN clock_timestamp() END,
        expires_at = CASE WHEN chain_index = 0 AND asked.next_id IS NULL
            THEN clock_timestamp() + result_ttl * interval '1 second' END,
        output = CASE WHEN asked.next_id IS NULL THEN coalesce(asked.output, 'null') END,
        error = NULL,
        continued_by = asked.next_id,
        lease_token = NULL,
        lease_expires_at = NULL
    FROM asked
    WHERE job.id = asked.id
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at, job.continued_by, job.result_ttl
),
closed AS (
    UPDATE {schema}.job
    SET chain_status = 'completed', chain_closed_at = clock_timestamp(), completed_tx = pg_current_xact_id(),
        expires_at = clock_timestamp() + job.result_ttl * interval '1 second'
    FROM done
    WHERE job.id = done.chain_id AND done.chain_index > 0 AND done.continued_by IS NULL
),
continued AS (
    INSERT INTO {schema}.job
        (id, type, chain_id, chain_type, chain_index, status, priority, scheduled_at, input, trace_context, limit_key,
         result_ttl)
    SELECT following.id, following.type, done.chain_id, done.chain_type, done.chain_index + 1,
        CASE WHEN due.at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END,
        following.priority, due.at, coalesce(following.input, 'null'), following.trace_context, following.limit_key,
        done.result_ttl
    FROM done
    JOIN following ON following.id = done.continued_by
    CROSS JOIN LATERAL (
        SELECT greatest(coalesce(following.moment, clock_timestamp() + following.delay * interval '1 second'),
                        clock_timestamp()) AS at
    ) AS due
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at
),
noted AS (
    INSERT INTO {schema}.job_event
        (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, worker, error)
    SELECT kind, status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, NULL, NULL
    FROM (
        SELECT status AS kind, status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at,
            'terminal' AS level
        FROM done
        UNION ALL
        SELECT 'created', status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, 'all'
        FROM continued
    ) AS event
    WHERE coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = event.type),
                   (SELECT level FROM {schema}.event_log)) IN ('all', event.level)
)
SELECT id FROM done
