-- The jobs of this write that will wait for chains, and for which: each once, in its order.
SELECT staged.id, chain.ids FROM {schema}.{stage} AS staged
JOIN {schema}.job ON job.id = staged.id AND job.write_id = %(write_id)s
CROSS JOIN LATERAL (
    SELECT array_agg(once.id ORDER BY once.place) AS ids
    FROM (
        SELECT given.id, min(given.place) AS place
        FROM unnest(staged.blocked_by) WITH ORDINALITY AS given (id, place)
        GROUP BY given.id
    ) AS once
) AS chain
WHERE staged.tag = ANY (%(tags)s::uuid[]) AND cardinality(staged.blocked_by) > 0
ORDER BY staged.id
