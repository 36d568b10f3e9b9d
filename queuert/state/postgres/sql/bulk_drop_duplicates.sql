-- Remove the staged rows that a chain stands in for, as find_duplicates finds it, or the first row of the same key.
WITH ordered AS MATERIALIZED (
    SELECT staged.ctid AS tid, staged.deduplication_key AS key,
        row_number() OVER (PARTITION BY staged.deduplication_key ORDER BY part.first + staged.place) AS nth
    FROM {schema}.{stage} AS staged
    JOIN unnest(%(tags)s::uuid[], %(firsts)s::bigint[]) AS part (tag, first) ON part.tag = staged.tag
    WHERE staged.deduplication_key IS NOT NULL
),
since AS MATERIALIZED (
    SELECT coalesce(statement_timestamp() - %(window)s::float8 * interval '1 second', '-infinity') AS at
),
double AS MATERIALIZED (
    SELECT tid FROM ordered
    WHERE nth > 1
    UNION ALL
    SELECT tid FROM ordered
    CROSS JOIN LATERAL (
        (SELECT id FROM {schema}.job
         WHERE %(only_open)s AND job.type = %(type)s AND deduplication_key = ordered.key AND chain_status = 'open'
            AND created_at >= (SELECT at FROM since)
         ORDER BY type DESC, deduplication_key DESC, created_at DESC LIMIT 1)
        UNION ALL
        (SELECT id FROM {schema}.job
         WHERE NOT %(only_open)s AND job.type = %(type)s AND deduplication_key = ordered.key
            AND (expires_at IS NULL OR expires_at > statement_timestamp())
            AND created_at >= (SELECT at FROM since)
         ORDER BY type DESC, deduplication_key DESC, created_at DESC LIMIT 1)
    ) AS found
    WHERE nth = 1
)
DELETE FROM {schema}.{stage} AS staged USING double WHERE staged.ctid = double.tid
