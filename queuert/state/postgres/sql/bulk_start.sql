-- Start a chain for each staged row of the attempts that won, as start_jobs does for a client. Rows are dated in the order
-- of the DataFrame, a microsecond each, which is less than writing one takes: none is of a time to come.
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
