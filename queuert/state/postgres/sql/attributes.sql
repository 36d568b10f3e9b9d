-- name: index_attributes
-- Write the entries by which chains can be found that are written in the same statement: `entry` becomes a part of a start, which
-- has its own `written`. Only batches with attributes take it, in one round trip as any other start.
WITH written AS (
    SELECT id, type, status, created_at, attributes FROM {schema}.job WHERE false
),
entry AS (
    INSERT INTO {schema}.chain_attribute (name, value, created_at, chain_id)
    SELECT DISTINCT given.name, one.value, written.created_at, written.id
    FROM written
    CROSS JOIN LATERAL jsonb_each(written.attributes) AS given (name, content)
    CROSS JOIN LATERAL jsonb_array_elements_text(
        CASE jsonb_typeof(given.content) WHEN 'array' THEN given.content ELSE jsonb_build_array(given.content) END
    ) AS one (value)
)
SELECT id, type, status, created_at FROM written

-- name: delete_attributes
-- Remove the entries of chains that were deleted. Each is found by its whole key, and no entry is ever updated; whoever deletes
-- has the chain's job locked.
DELETE FROM {schema}.chain_attribute
WHERE ctid = ANY (ARRAY(
    SELECT entry.tid
    FROM unnest(%(names)s::text[], %(values)s::text[], %(started)s::timestamptz[], %(ids)s::text[])
        AS gone (name, value, created_at, chain_id)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM {schema}.chain_attribute AS one
        WHERE one.name = gone.name AND one.value = gone.value
            AND one.created_at = gone.created_at AND one.chain_id = gone.chain_id
        OFFSET 0
    ) AS entry
))
RETURNING chain_id
