-- The chains that staged rows will wait for.
SELECT DISTINCT chain.id FROM {schema}.{stage} AS staged
CROSS JOIN LATERAL unnest(staged.blocked_by) AS chain (id)
WHERE staged.tag = ANY (%(tags)s::uuid[])
