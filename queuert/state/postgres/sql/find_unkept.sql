-- A look at closed chains that the retention of their type may not keep, by type and outcome, the oldest start first. A chain
-- closes after it was started: what closed before a moment was started before it, so that the index of listings will do. Read
-- are those that were started before that moment and have closed after it as well, which are the open ones of then; and, for a
-- count, as many entries of the index as are kept. The marks are looked up first, so that the walk begins and ends at them.
WITH stretch AS MATERIALIZED (
    SELECT asked.*, cut.at AS cut, beyond.created_at AS mark, beyond.id AS mark_id
    FROM unnest(%(types)s::text[], %(statuses)s::text[], %(ages)s::float8[], %(counts)s::bigint[],
                %(lows)s::timestamptz[], %(low_ids)s::text[]) WITH ORDINALITY
        AS asked (type, status, age, count, low, low_id, place)
    CROSS JOIN LATERAL (SELECT statement_timestamp() - age * interval '1 second' AS at) AS cut
    LEFT JOIN LATERAL (
        SELECT created_at, id FROM (
            (SELECT created_at, id FROM {schema}.job
             WHERE asked.count IS NOT NULL AND chain_index = 0 AND job.status <> 'running'
                AND job.type = asked.type AND job.status = asked.status
             ORDER BY created_at DESC, id DESC LIMIT coalesce(asked.count, 0) + 1)
            UNION ALL
            (SELECT created_at, id FROM {schema}.job
             WHERE asked.count IS NOT NULL AND job.status = 'continued'
                AND job.type = asked.type AND job.chain_status = asked.status
             ORDER BY created_at DESC, id DESC LIMIT coalesce(asked.count, 0) + 1)
        ) AS newest
        ORDER BY created_at DESC, id DESC OFFSET coalesce(asked.count, 0) LIMIT 1
    ) AS beyond ON true
)
SELECT stretch.place, found.id, found.created_at, found.chain_closed_at, found.unkept
FROM stretch
CROSS JOIN LATERAL (
    SELECT id, created_at, chain_closed_at,
        expires_at IS NULL
            AND coalesce(chain_closed_at <= stretch.cut OR (created_at, id) <= (stretch.mark, stretch.mark_id), false)
            AS unkept
    FROM (
        (SELECT id, created_at, chain_closed_at, expires_at FROM {schema}.job
         WHERE chain_index = 0 AND job.status <> 'running' AND job.type = stretch.type AND job.status = stretch.status
            AND (created_at, id) > (stretch.low, stretch.low_id)
            AND created_at <= greatest(stretch.cut, stretch.mark)
         ORDER BY created_at, id LIMIT %(limit)s)
        UNION ALL
        (SELECT id, created_at, chain_closed_at, expires_at FROM {schema}.job
         WHERE job.status = 'continued' AND job.type = stretch.type AND job.chain_status = stretch.status
            AND (created_at, id) > (stretch.low, stretch.low_id)
            AND created_at <= greatest(stretch.cut, stretch.mark)
         ORDER BY created_at, id LIMIT %(limit)s)
    ) AS entry
    ORDER BY created_at, id LIMIT %(limit)s
) AS found
ORDER BY stretch.place, found.created_at, found.id LIMIT %(limit)s
