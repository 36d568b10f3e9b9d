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
