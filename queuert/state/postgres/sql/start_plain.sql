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
    INSERT INTO {schema}.job_event (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at)
    SELECT 'created', status, id, id, 0, type, type, 0, scheduled_at
    FROM written
    WHERE coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = %(type)s::text),
                   (SELECT level FROM {schema}.event_log)) = 'all'
)
SELECT id, type, status, created_at FROM written
