-- Take away the level of types, locked in the order in which they are written.
DELETE FROM {schema}.event_level
WHERE type IN (SELECT type FROM {schema}.event_level WHERE type = ANY (%(types)s::text[]) ORDER BY type FOR UPDATE)
RETURNING type
