-- Start a chain for each staged row of the attempts that won, as start_jobs does for a client. Rows are dated in the order
-- of the DataFrame, a microsecond each, which is less than writing one takes: none is of a time to come.
WITH level AS MATERIALIZED (
    SELECT coalesce((SELECT level FROM {schema}.event_level WHERE type = %(type)s),
                    (SELECT level FROM {schema}.event_log)) AS level
),
new AS (
    INSERT INTO {schema}.job
        (id, type, chain_id, chain_type, chain_status, status, priority, created_at, scheduled_at, input,
         trace_context, deduplication_key, limit_key, write_id)
    SELECT staged.id, %(type)s, staged.id, %(type)s, 'open',
        CASE WHEN staged.schedule_at > written.at THEN 'scheduled' ELSE 'ready' END,
        coalesce(staged.priority, 0), written.at, greatest(staged.schedule_at, written.at), staged.input,
        %(trace_context)s, staged.deduplication_key, staged.limit_key, %(write_id)s
    FROM {schema}.{stage} AS staged
    JOIN unnest(%(tags)s::uuid[], %(firsts)s::bigint[]) AS part (tag, first) ON part.tag = staged.tag
    CROSS JOIN LATERAL (
        SELECT statement_timestamp() + (part.first + staged.place) * interval '1 microsecond' AS at
    ) AS written
    {conflict}
    RETURNING id, status, scheduled_at
),
noted AS (
    INSERT INTO {schema}.job_event (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at)
    SELECT 'created', new.status, new.id, new.id, 0, %(type)s, %(type)s, 0, new.scheduled_at
    FROM new, level
    WHERE level.level = 'all'
)
SELECT count(*) FROM new
