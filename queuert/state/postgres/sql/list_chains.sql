-- A page of chains, newest first: as list_jobs, on the index chain_listing. Only first jobs have a chain's status.
WITH RECURSIVE known (type) AS (
    (SELECT type FROM {schema}.job WHERE chain_status IS NOT NULL AND %(types)s::text[] IS NULL ORDER BY type LIMIT 1)
    UNION ALL
    SELECT next.type FROM known
    CROSS JOIN LATERAL (
        SELECT type FROM {schema}.job WHERE chain_status IS NOT NULL AND job.type > known.type ORDER BY type LIMIT 1
    ) AS next
),
stretch AS MATERIALIZED (
    SELECT asked.type, status, head.created_at, head.id
    FROM (SELECT unnest(%(types)s::text[]) AS type UNION ALL SELECT type FROM known) AS asked
    CROSS JOIN unnest(%(statuses)s::text[]) AS status
    CROSS JOIN LATERAL (
        SELECT created_at, id FROM {schema}.job
        WHERE job.type = asked.type AND job.chain_status = status.status
            AND (created_at, id) > (%(low)s::timestamptz, %(low_id)s::text)
            AND (created_at, id) < (%(high)s::timestamptz, %(high_id)s::text)
        ORDER BY created_at DESC, id DESC LIMIT 1
    ) AS head
    ORDER BY head.created_at DESC, head.id DESC LIMIT %(limit)s::bigint
),
page AS MATERIALIZED (
    SELECT entry.id
    FROM stretch
    CROSS JOIN LATERAL (
        SELECT created_at, id FROM {schema}.job
        WHERE job.type = stretch.type AND job.chain_status = stretch.status
            AND (created_at, id) > (%(low)s::timestamptz, %(low_id)s::text)
            AND (created_at, id) < (%(high)s::timestamptz, %(high_id)s::text)
        ORDER BY created_at DESC, id DESC LIMIT %(limit)s::bigint
    ) AS entry
    ORDER BY entry.created_at DESC, entry.id DESC LIMIT %(limit)s::bigint
)
SELECT id, type, status, input::text, CASE WHEN status = 'completed' THEN output::text END, error::text, tail_type,
    created_at, closed_at, tail_id, expires_at, attributes::text
FROM {schema}.chain WHERE id = ANY (ARRAY(SELECT page.id FROM page))
ORDER BY created_at DESC, id DESC
