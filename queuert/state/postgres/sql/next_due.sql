-- Seconds until the first job of these types, less the paused ones, is due: one index entry a type and status. Any ready
-- job would do; the order is there so that the index is used, rather than the table read up to the first match.
SELECT CASE WHEN count(*) > 0
    THEN greatest(extract(epoch FROM min(head.scheduled_at) - clock_timestamp()), 0)::float8 END
FROM (
    SELECT asked.type FROM unnest(%(types)s::text[]) AS asked (type)
    WHERE NOT EXISTS (SELECT FROM {schema}.paused_type WHERE paused_type.type = asked.type)
) AS wanted
CROSS JOIN LATERAL (
    (SELECT to_timestamp(0) AS scheduled_at FROM {schema}.job
     WHERE job.type = wanted.type AND status = 'ready' ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at LIMIT 1)
    UNION ALL
    (SELECT scheduled_at FROM {schema}.job
     WHERE job.type || '' = wanted.type AND status = 'scheduled' ORDER BY scheduled_at LIMIT 1)
) AS head
