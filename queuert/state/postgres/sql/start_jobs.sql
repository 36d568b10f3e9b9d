-- Write the first jobs of new chains.
WITH written AS (
    INSERT INTO {schema}.job
        (id, type, chain_id, chain_type, chain_status, status, priority, created_at, scheduled_at, has_dependents, input,
         trace_context, deduplication_key, limit_key, result_ttl, attributes)
    SELECT id, type, id, type, 'open', CASE WHEN due.at > written.at THEN 'scheduled' ELSE 'ready' END,
        priority, written.at, due.at, awaited, coalesce(input, 'null'), trace_context, deduplication_key, limit_key,
        result_ttl, attributes
    FROM ROWS FROM (json_to_recordset(%(jobs)s::json)
        AS (id text, type text, priority int, delay float8, moment timestamptz, awaited bool, input jsonb,
            trace_context text, deduplication_key text, limit_key text, result_ttl float8, attributes jsonb))
        WITH ORDINALITY
        AS new (id, type, priority, delay, moment, awaited, input, trace_context, deduplication_key, limit_key, result_ttl,
            attributes, place)
    -- A time for each, so that those of one call are claimed in their order; `before` are in its statements before this one.
    CROSS JOIN LATERAL (
        SELECT clock_timestamp() + (%(before)s::int + place - 1) * interval '1 microsecond' AS at
    ) AS written
    CROSS JOIN LATERAL (
        SELECT greatest(coalesce(moment, written.at + delay * interval '1 second'), written.at) AS at
    ) AS due
    RETURNING id, type, status, created_at, scheduled_at, attributes
),
noted AS (
    INSERT INTO {schema}.job_event (kind, status, chain_index, type, chain_type, attempt, job_ids, scheduled_ats)
    SELECT 'created', status, 0, type, type, 0, array_agg(id), array_agg(scheduled_at)
    FROM (
        SELECT *, row_number() OVER () AS place FROM written
        WHERE coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = written.type),
                       (SELECT level FROM {schema}.event_log)) = 'all'
    ) AS event
    GROUP BY place / {events_a_row}, status, type ORDER BY min(place)
)
SELECT id, type, status, created_at FROM written
