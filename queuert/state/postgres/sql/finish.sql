-- End attempts of many kinds in one guarded statement. A row is written only while its token holds the job; the token
-- stays in the row as evidence of who ended it. Rows, and the chains that close, are locked first, the
-- oldest first; what another transaction has locked is left out, so that one held row does not hold up the batch. So is a
-- chain that other jobs wait for, unless the caller releases those in the same transaction (`closes_awaited`).
WITH asked AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(finishes)s::json) AS f (
        id text, token uuid, kind text, delay float8, output jsonb, error jsonb, root text,
        next_id text, next_type text, next_input jsonb, next_priority int, next_delay float8, next_moment timestamptz,
        next_trace text, next_limit text, crashed bool, ttl float8)
),
locked AS MATERIALIZED (
    SELECT id, has_dependents FROM {schema}.job
    WHERE id = ANY (%(rows)s::text[])
        AND (id = ANY (%(roots)s::text[]) OR lease_token = ANY (%(tokens)s::uuid[]) AND lease_expires_at IS NOT NULL)
    ORDER BY created_at, id FOR NO KEY UPDATE SKIP LOCKED
),
closable AS (
    SELECT id FROM locked WHERE %(closes_awaited)s OR NOT has_dependents
),
done AS (
    UPDATE {schema}.job
    SET status = CASE asked.kind
            WHEN 'complete' THEN 'completed' WHEN 'continue' THEN 'continued'
            WHEN 'fail' THEN 'failed' WHEN 'cancel' THEN 'cancelled'
            WHEN 'retry' THEN CASE WHEN asked.delay > 0 THEN 'scheduled' ELSE 'ready' END
            ELSE 'ready' END,
        chain_status = CASE WHEN chain_index > 0 THEN NULL
            ELSE CASE asked.kind WHEN 'complete' THEN 'completed' WHEN 'fail' THEN 'failed'
                                 WHEN 'cancel' THEN 'cancelled' ELSE chain_status END END,
        chain_closed_at = CASE WHEN chain_index = 0 AND asked.kind IN ('complete', 'fail', 'cancel')
            THEN clock_timestamp() END,
        expires_at = CASE WHEN chain_index = 0 AND asked.kind IN ('complete', 'fail', 'cancel')
            THEN clock_timestamp() + coalesce(asked.ttl, result_ttl) * interval '1 second' END,
        finished_at = CASE WHEN asked.kind NOT IN ('retry', 'interrupt', 'wait') THEN clock_timestamp() END,
        completed_tx = CASE WHEN asked.kind NOT IN ('retry', 'interrupt', 'wait') THEN pg_current_xact_id() END,
        scheduled_at = CASE asked.kind WHEN 'retry' THEN clock_timestamp() + asked.delay * interval '1 second'
                                       WHEN 'wait' THEN clock_timestamp()
                                       ELSE scheduled_at END,
        uncounted = uncounted + (asked.kind IN ('interrupt', 'wait'))::int,
        lease_expirations = lease_expirations + asked.crashed::int,
        output = CASE asked.kind WHEN 'complete' THEN coalesce(asked.output, 'null') WHEN 'continue' THEN asked.output END,
        error = asked.error,
        continued_by = asked.next_id,
        lease_expires_at = NULL
    FROM asked
    WHERE job.id = asked.id AND job.lease_token = asked.token AND job.lease_expires_at IS NOT NULL
        AND job.id IN (SELECT id FROM locked)
        AND (asked.kind IN ('continue', 'retry', 'interrupt', 'wait')
             OR coalesce(asked.root, asked.id) IN (SELECT id FROM closable))
    RETURNING job.id, job.lease_token, job.type, job.status, job.chain_id, job.chain_type, job.chain_index, job.priority,
        job.result_ttl, asked.ttl, asked.kind, job.attempt, job.scheduled_at, job.started_at, job.holder, job.error
),
closed AS (
    UPDATE {schema}.job
    SET chain_status = done.status, chain_closed_at = clock_timestamp(), completed_tx = pg_current_xact_id(),
        expires_at = clock_timestamp() + coalesce(done.ttl, job.result_ttl) * interval '1 second'
    FROM done
    WHERE job.id = done.chain_id AND done.chain_index > 0 AND done.status IN ('completed', 'failed', 'cancelled')
),
continued AS (
    INSERT INTO {schema}.job
        (id, type, chain_id, chain_type, chain_index, status, priority, scheduled_at, input, trace_context, limit_key,
         result_ttl)
    SELECT asked.next_id, asked.next_type, done.chain_id, done.chain_type, done.chain_index + 1,
        CASE WHEN due.at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END,
        coalesce(asked.next_priority, done.priority), due.at, coalesce(asked.next_input, 'null'), asked.next_trace,
        asked.next_limit, done.result_ttl
    FROM done
    JOIN asked ON asked.id = done.id AND asked.token = done.lease_token
    CROSS JOIN LATERAL (
        SELECT greatest(coalesce(asked.next_moment, clock_timestamp() + asked.next_delay * interval '1 second'),
                        clock_timestamp()) AS at
    ) AS due
    WHERE done.status = 'continued'
    RETURNING id, status, chain_id, chain_index, type, chain_type, scheduled_at
),
noted AS (
    INSERT INTO {schema}.job_event
        (kind, status, chain_index, type, chain_type, attempt, worker, error, job_ids, chain_ids, scheduled_ats, started_ats)
    SELECT CASE kind WHEN 'retry' THEN 'retried' WHEN 'interrupt' THEN 'interrupted' WHEN 'wait' THEN 'waiting'
                     WHEN 'create' THEN 'created' ELSE status END,
        status, chain_index, type, chain_type, attempt, holder, error,
        array_agg(id), array_agg(chain_id) FILTER (WHERE chain_index > 0), array_agg(scheduled_at), array_agg(started_at)
    FROM (
        SELECT *, row_number() OVER () AS place
        FROM (
            SELECT kind, status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, holder, error
            FROM done
            UNION ALL
            SELECT 'create', status, id, chain_id, chain_index, type, chain_type, 0, scheduled_at, NULL, NULL, NULL
            FROM continued
        ) AS one
        WHERE coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = one.type),
                       (SELECT level FROM {schema}.event_log))
            IN ('all', CASE WHEN one.kind IN ('complete', 'continue', 'fail', 'cancel') THEN 'terminal' END)
    ) AS event
    GROUP BY place / {events_a_row}, kind, status, chain_index, type, chain_type, attempt, holder, error ORDER BY min(place)
)
SELECT id, lease_token::text, status FROM done
