-- Of staged rows that have the same id keep the first one, in the order of the DataFrame, whatever becomes of it later.
WITH repeated AS MATERIALIZED (
    SELECT staged.id, min(part.first + staged.place) AS kept
    FROM {schema}.{stage} AS staged
    JOIN unnest(%(tags)s::uuid[], %(firsts)s::bigint[]) AS part (tag, first) ON part.tag = staged.tag
    GROUP BY staged.id
    HAVING count(*) > 1
)
DELETE FROM {schema}.{stage} AS staged
USING repeated, unnest(%(tags)s::uuid[], %(firsts)s::bigint[]) AS part (tag, first)
WHERE staged.id = repeated.id AND part.tag = staged.tag AND part.first + staged.place > repeated.kept
