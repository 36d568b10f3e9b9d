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
