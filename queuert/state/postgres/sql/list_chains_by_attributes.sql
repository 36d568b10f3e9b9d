-- A page of the chains that have all these attributes. The entries of each attribute lie in the order of the page. A step takes
-- the next one of the first attribute, looks where each attribute has its first entry from there on, and leaps to the farthest
-- of these; where all are one and the same, it is a chain that has them all. So a step passes over whatever the rarest
-- leaves out, and steps go on until the page is full. Types and statuses are looked up in the chain's row.
-- It is written newest first. There is one bound on either side, as what lies between two on one side would be searched through.
WITH RECURSIVE leap (step, created_at, chain_id, found) AS (
    SELECT 0, %(high)s::timestamptz, %(high_id)s::text COLLATE "C", true
    UNION ALL
    SELECT leap.step + 1, far.created_at, far.chain_id, (far.created_at, far.chain_id) = (next.created_at, next.chain_id)
    FROM leap
    CROSS JOIN LATERAL (
        SELECT created_at, chain_id FROM {schema}.chain_attribute
        WHERE name = (%(names)s::text[])[1] AND value = (%(values)s::text[])[1]
            AND (created_at, chain_id) <= (leap.created_at, leap.chain_id)
            AND (created_at, chain_id) > (%(low)s::timestamptz, %(low_id)s::text)
            AND NOT (leap.found AND chain_id = leap.chain_id AND created_at = leap.created_at)
        ORDER BY created_at DESC, chain_id DESC LIMIT 1
    ) AS next
    CROSS JOIN LATERAL (
        SELECT entry.created_at, entry.chain_id, count(*) OVER () AS number
        FROM unnest(%(names)s::text[], %(values)s::text[]) AS asked (name, value)
        CROSS JOIN LATERAL (
            SELECT created_at, chain_id FROM {schema}.chain_attribute
            WHERE chain_attribute.name = asked.name AND chain_attribute.value = asked.value
                AND (created_at, chain_id) <= (next.created_at, next.chain_id)
            ORDER BY created_at DESC, chain_id DESC LIMIT 1
        ) AS entry
        ORDER BY entry.created_at ASC, entry.chain_id ASC LIMIT 1
    ) AS far
    WHERE far.number = cardinality(%(names)s::text[])
),
page AS MATERIALIZED (
    SELECT leap.chain_id
    FROM leap
    WHERE leap.found AND leap.step > 0
        AND (
            SELECT root.chain_status = ANY (%(statuses)s::text[])
                AND (%(types)s::text[] IS NULL OR root.type = ANY (%(types)s::text[]))
            FROM {schema}.job AS root
            WHERE root.id = leap.chain_id
        )
    LIMIT %(limit)s::bigint
)
SELECT id, type, status, input::text, CASE WHEN status = 'completed' THEN output::text END, error::text, tail_type,
    created_at, closed_at, tail_id, expires_at, attributes::text
FROM {schema}.chain WHERE id = ANY (ARRAY(SELECT page.chain_id FROM page))
ORDER BY created_at DESC, id DESC
