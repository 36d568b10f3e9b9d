-- Write the first job of one new chain that has nothing of its own but id and input, and is due now: what most starts are.
-- Without arrays to take apart it takes the server a sixth less than the statement for many.
WITH written AS (
    INSERT INTO {schema}.job
        (id, type, chain_id, chain_type, chain_status, status, priority, created_at, scheduled_at, has_dependents, input,
         trace_context, limit_key, result_ttl)
    SELECT %(id)s::text, %(type)s::text, %(id)s::text, %(type)s::text, 'open', 'ready', %(priority)s::int, at, at,
        %(awaited)s::bool, %(input)s::jsonb, %(trace_context)s::text, %(limit_key)s::text, %(result_ttl)s::float8
    FROM (SELECT clock_timestamp() + %(before)s::int * interval '1 microsecond' AS at OFFSET 0) AS now
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
