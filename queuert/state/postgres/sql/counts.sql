SELECT type, shown.status, count(*),
    extract(epoch FROM clock_timestamp() - min(coalesce(finished_at, scheduled_at)))::float8
FROM {schema}.job
CROSS JOIN LATERAL (
    SELECT CASE WHEN job.status = 'scheduled' AND scheduled_at <= clock_timestamp() THEN 'ready' ELSE job.status END
) AS shown (status)
WHERE %(types)s::text[] IS NULL OR type = ANY (%(types)s::text[])
GROUP BY type, shown.status ORDER BY type, shown.status
