-- A page of jobs, newest first; the other order is the same without the words for it.
-- Each type and status is two stretches in this order: first jobs of chains, and later ones, each kind in an index of its own.
-- No more than a page is read of any, and of those only whose newest entries are among the best: the others cannot be on the
-- page. Running jobs, as many as there are slots, are in neither: they are read from theirs and sorted.
-- One bound a side, of (created_at, id) together: the scan starts at it.
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
stretch AS MATERIALIZED (
    SELECT asked.type, status, part.name, head.created_at, head.id
    FROM (SELECT unnest(%(types)s::text[]) AS type UNION ALL SELECT type FROM known) AS asked
    CROSS JOIN unnest(%(statuses)s::text[]) AS status
    JOIN (VALUES ('first'), ('later'), ('running')) AS part (name) ON (part.name = 'running') = (status = 'running')
    CROSS JOIN LATERAL (
        (SELECT created_at, id FROM {schema}.job
         WHERE part.name = 'first' AND chain_index = 0 AND job.status <> 'running'
            AND job.type = asked.type AND job.status = status.status
            AND (created_at, id) > (%(low)s::timestamptz, %(low_id)s::text)
            AND (created_at, id) < (%(high)s::timestamptz, %(high_id)s::text)
         ORDER BY created_at DESC, id DESC LIMIT 1)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE part.name = 'later' AND chain_index > 0 AND job.status <> 'running'
            AND job.type = asked.type AND job.status = status.status
            AND (created_at, id) > (%(low)s::timestamptz, %(low_id)s::text)
            AND (created_at, id) < (%(high)s::timestamptz, %(high_id)s::text)
         ORDER BY created_at DESC, id DESC LIMIT 1)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE part.name = 'running' AND job.status = 'running' AND job.type = asked.type
            AND (created_at, id) > (%(low)s::timestamptz, %(low_id)s::text)
            AND (created_at, id) < (%(high)s::timestamptz, %(high_id)s::text)
         ORDER BY created_at DESC, id DESC LIMIT 1)
    ) AS head
    ORDER BY head.created_at DESC, head.id DESC LIMIT %(limit)s::bigint
),
page AS MATERIALIZED (
    SELECT entry.id
    FROM stretch
    CROSS JOIN LATERAL (
        (SELECT created_at, id FROM {schema}.job
         WHERE stretch.name = 'first' AND chain_index = 0 AND job.status <> 'running'
            AND job.type = stretch.type AND job.status = stretch.status
            AND (created_at, id) > (%(low)s::timestamptz, %(low_id)s::text)
            AND (created_at, id) < (%(high)s::timestamptz, %(high_id)s::text)
         ORDER BY created_at DESC, id DESC LIMIT %(limit)s::bigint)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE stretch.name = 'later' AND chain_index > 0 AND job.status <> 'running'
            AND job.type = stretch.type AND job.status = stretch.status
            AND (created_at, id) > (%(low)s::timestamptz, %(low_id)s::text)
            AND (created_at, id) < (%(high)s::timestamptz, %(high_id)s::text)
         ORDER BY created_at DESC, id DESC LIMIT %(limit)s::bigint)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE stretch.name = 'running' AND job.status = 'running' AND job.type = stretch.type
            AND (created_at, id) > (%(low)s::timestamptz, %(low_id)s::text)
            AND (created_at, id) < (%(high)s::timestamptz, %(high_id)s::text)
         ORDER BY created_at DESC, id DESC LIMIT %(limit)s::bigint)
    ) AS entry
    ORDER BY entry.created_at DESC, entry.id DESC LIMIT %(limit)s::bigint
)
SELECT id, type, chain_id, chain_index,
    CASE WHEN status = 'scheduled' AND scheduled_at <= clock_timestamp() THEN 'ready' ELSE status END,
    priority, attempt, uncounted, lease_expirations, open_blockers, input::text, output::text, error::text,
    created_at, scheduled_at, started_at, finished_at, holder, lease_expires_at, continued_by,
    deduplication_key, limit_key, progress
FROM {schema}.job WHERE id = ANY (ARRAY(SELECT page.id FROM page))
ORDER BY created_at DESC, id DESC
