-- How many jobs there are of each type and status, counted up to a cap and by one more where there are more, and the age of
-- the oldest. Of the statuses that no index has by age, rows are looked at, where there are at most a thousand.
-- The orders are those of the indexes: they keep the planner from reading the table until it has found enough.
WITH RECURSIVE known (type) AS (
    (
        SELECT first.type FROM (
            (SELECT type FROM {schema}.job WHERE chain_index = 0 AND status <> 'running' ORDER BY type LIMIT 1)
            UNION ALL
            (SELECT type FROM {schema}.job WHERE chain_index > 0 AND status <> 'running' ORDER BY type LIMIT 1)
            UNION ALL
            (SELECT type FROM {schema}.job WHERE status = 'running' ORDER BY type LIMIT 1)
        ) AS first
        WHERE %(types)s::text[] IS NULL ORDER BY first.type LIMIT 1
    )
    UNION ALL
    SELECT next.type FROM known
    CROSS JOIN LATERAL (
        SELECT following.type FROM (
            (SELECT type FROM {schema}.job WHERE chain_index = 0 AND status <> 'running' AND job.type > known.type ORDER BY type LIMIT 1)
            UNION ALL
            (SELECT type FROM {schema}.job WHERE chain_index > 0 AND status <> 'running' AND job.type > known.type ORDER BY type LIMIT 1)
            UNION ALL
            (SELECT type FROM {schema}.job WHERE status = 'running' AND job.type > known.type ORDER BY type LIMIT 1)
        ) AS following
        ORDER BY following.type LIMIT 1
    ) AS next
),
asked AS MATERIALIZED (SELECT unnest(%(types)s::text[]) AS type UNION ALL SELECT type FROM known)
SELECT asked.type, found.status, found.due, found.number, extract(epoch FROM clock_timestamp() - found.oldest)::float8
FROM asked CROSS JOIN LATERAL (
    SELECT status, false AS due, counted.number, CASE WHEN status = 'ready' THEN ready.oldest ELSE age.oldest END AS oldest
    FROM unnest(%(statuses)s::text[]) AS status
    CROSS JOIN LATERAL (
        SELECT least(count(*), %(cap)s::bigint + 1) AS number FROM (
            (SELECT FROM {schema}.job
             WHERE status.status <> 'running' AND chain_index = 0 AND job.status <> 'running'
                AND job.type = asked.type AND job.status = status.status
             ORDER BY created_at, id LIMIT %(cap)s::bigint + 1)
            UNION ALL
            (SELECT FROM {schema}.job
             WHERE status.status <> 'running' AND chain_index > 0 AND job.status <> 'running'
                AND job.type = asked.type AND job.status = status.status
             ORDER BY created_at, id LIMIT %(cap)s::bigint + 1)
            UNION ALL
            (SELECT FROM {schema}.job
             WHERE status.status = 'running' AND job.status = 'running' AND job.type = asked.type
             ORDER BY type LIMIT %(cap)s::bigint + 1)
        ) AS entry
    ) AS counted
    CROSS JOIN LATERAL (
        SELECT min(seen.since) AS oldest FROM (
            (SELECT coalesce(finished_at, scheduled_at) AS since FROM {schema}.job
             WHERE status.status NOT IN ('ready', 'running') AND chain_index = 0 AND job.status <> 'running'
                AND job.type = asked.type AND job.status = status.status
                AND counted.number <= least(1000, %(cap)s::bigint)
             ORDER BY created_at, id LIMIT 1000)
            UNION ALL
            (SELECT coalesce(finished_at, scheduled_at) AS since FROM {schema}.job
             WHERE status.status NOT IN ('ready', 'running') AND chain_index > 0 AND job.status <> 'running'
                AND job.type = asked.type AND job.status = status.status
                AND counted.number <= least(1000, %(cap)s::bigint)
             ORDER BY created_at, id LIMIT 1000)
            UNION ALL
            (SELECT coalesce(finished_at, scheduled_at) AS since FROM {schema}.job
             WHERE status.status = 'running' AND job.status = 'running' AND job.type = asked.type
                AND counted.number <= least(1000, %(cap)s::bigint)
             ORDER BY type LIMIT 1000)
        ) AS seen
    ) AS age
    -- Ready jobs are in the order of their age within each rank that there is: a few priorities and numbers of failures.
    CROSS JOIN LATERAL (
        WITH RECURSIVE stretch (rank, oldest, step) AS (
            (
                SELECT attempt - uncounted - lease_expirations - priority, scheduled_at, 1 FROM {schema}.job
                WHERE job.status = 'ready' AND job.type = asked.type AND status.status = 'ready'
                ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at LIMIT 1
            )
            UNION ALL
            SELECT next.rank, next.scheduled_at, step + 1 FROM stretch CROSS JOIN LATERAL (
                SELECT attempt - uncounted - lease_expirations - priority AS rank, scheduled_at FROM {schema}.job
                WHERE job.status = 'ready' AND job.type = asked.type
                    AND attempt - uncounted - lease_expirations - priority > stretch.rank
                ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at LIMIT 1
            ) AS next
            WHERE step < 200
        )
        SELECT CASE WHEN max(step) < 200 THEN min(stretch.oldest) END AS oldest FROM stretch
    ) AS ready
    UNION ALL
    SELECT 'scheduled', due, counted.number, counted.oldest
    FROM (SELECT clock_timestamp() AS now) AS clock
    CROSS JOIN LATERAL (VALUES (true, '-infinity', clock.now), (false, clock.now, 'infinity')) AS span (due, after, until)
    CROSS JOIN LATERAL (
        SELECT count(*) AS number, min(entry.scheduled_at) AS oldest FROM (
            SELECT scheduled_at FROM {schema}.job
            WHERE job.status = 'scheduled' AND job.type || '' = asked.type
                AND scheduled_at > span.after::timestamptz AND scheduled_at <= span.until
            ORDER BY scheduled_at LIMIT %(cap)s::bigint + 1
        ) AS entry
    ) AS counted
) AS found
WHERE found.number > 0
