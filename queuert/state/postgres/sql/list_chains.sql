-- A page of chains, newest first: as list_jobs, of first jobs alone. While a first job has not continued, its own status tells
-- that of its chain; those that have are in the index chain_listing, by the status of the chain.
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
kind (status, chain_status) AS (
    SELECT * FROM (VALUES
        ('blocked', 'open'), ('scheduled', 'open'), ('ready', 'open'), ('running', 'open'), ('continued', 'open'),
        ('completed', 'completed'), ('continued', 'completed'), ('failed', 'failed'), ('continued', 'failed'),
        ('cancelled', 'cancelled'), ('continued', 'cancelled')) AS known_kind (status, chain_status)
    WHERE known_kind.chain_status = ANY (%(statuses)s::text[])
),
stretch AS MATERIALIZED (
    SELECT asked.type, kind.status, kind.chain_status, head.created_at, head.id
    FROM (SELECT unnest(%(types)s::text[]) AS type UNION ALL SELECT type FROM known) AS asked
    CROSS JOIN kind
    CROSS JOIN LATERAL (
        (SELECT created_at, id FROM {schema}.job
         WHERE kind.status NOT IN ('running', 'continued') AND chain_index = 0 AND job.status <> 'running'
            AND job.type = asked.type AND job.status = kind.status
            AND (created_at, id) > (%(low)s::timestamptz, %(low_id)s::text)
            AND (created_at, id) < (%(high)s::timestamptz, %(high_id)s::text)
         ORDER BY created_at DESC, id DESC LIMIT 1)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE kind.status = 'running' AND job.status = 'running' AND job.type = asked.type AND chain_index = 0
            AND (created_at, id) > (%(low)s::timestamptz, %(low_id)s::text)
            AND (created_at, id) < (%(high)s::timestamptz, %(high_id)s::text)
         ORDER BY created_at DESC, id DESC LIMIT 1)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE kind.status = 'continued' AND job.status = 'continued'
            AND job.type = asked.type AND job.chain_status = kind.chain_status
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
         WHERE stretch.status NOT IN ('running', 'continued') AND chain_index = 0 AND job.status <> 'running'
            AND job.type = stretch.type AND job.status = stretch.status
            AND (created_at, id) > (%(low)s::timestamptz, %(low_id)s::text)
            AND (created_at, id) < (%(high)s::timestamptz, %(high_id)s::text)
         ORDER BY created_at DESC, id DESC LIMIT %(limit)s::bigint)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE stretch.status = 'running' AND job.status = 'running' AND job.type = stretch.type AND chain_index = 0
            AND (created_at, id) > (%(low)s::timestamptz, %(low_id)s::text)
            AND (created_at, id) < (%(high)s::timestamptz, %(high_id)s::text)
         ORDER BY created_at DESC, id DESC LIMIT %(limit)s::bigint)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE stretch.status = 'continued' AND job.status = 'continued'
            AND job.type = stretch.type AND job.chain_status = stretch.chain_status
            AND (created_at, id) > (%(low)s::timestamptz, %(low_id)s::text)
            AND (created_at, id) < (%(high)s::timestamptz, %(high_id)s::text)
         ORDER BY created_at DESC, id DESC LIMIT %(limit)s::bigint)
    ) AS entry
    ORDER BY entry.created_at DESC, entry.id DESC LIMIT %(limit)s::bigint
)
SELECT id, type, status, input::text, CASE WHEN status = 'completed' THEN output::text END, error::text, tail_type,
    created_at, closed_at, tail_id, expires_at, attributes::text
FROM {schema}.chain WHERE id = ANY (ARRAY(SELECT page.id FROM page))
ORDER BY created_at DESC, id DESC
