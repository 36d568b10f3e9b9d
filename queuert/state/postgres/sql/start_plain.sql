-- Write the first jobs of new chains that have nothing of their own but id and input, and are due now. Arrays are read in half
-- the time of the general statement's rows.
WITH written AS (
    INSERT INTO {schema}.job
        (id, type, chain_id, chain_type, chain_status, status, priority, created_at, scheduled_at, has_dependents, input,
         trace_context, limit_key, result_ttl)
    SELECT id, %(type)s::text, id, %(type)s::text, 'open', 'ready', %(priority)s::int, at, at, %(awaited)s::bool, input,
        %(trace_context)s::text, %(limit_key)s::text, %(result_ttl)s::float8
    FROM (
        -- A time for each, so that those of one call are claimed in their order; `before` are in its statements before this one.
        SELECT id, input, clock_timestamp() + (%(before)s::int + place - 1) * interval '1 microsecond' AS at
        FROM ROWS FROM (unnest(%(ids)s::text[], %(inputs)s::jsonb[])) WITH ORDINALITY AS given (id, input, place)
    ) AS new
    RETURNING id, type, status, created_at, scheduled_at
),
noted AS (
    INSERT INTO {schema}.job_event (kind, status, chain_index, type, chain_type, attempt, job_ids, scheduled_ats)
    SELECT 'created', 'ready', 0, %(type)s::text, %(type)s::text, 0, array_agg(id), array_agg(scheduled_at)
    FROM (
        SELECT id, scheduled_at, row_number() OVER () AS place FROM written
        WHERE coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = %(type)s::text),
                       (SELECT level FROM {schema}.event_log)) = 'all'
    ) AS event
    GROUP BY place / {events_a_row} ORDER BY min(place)
)
SELECT id, type, status, created_at FROM written
