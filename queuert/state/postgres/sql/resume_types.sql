-- Resume job types, locked in the order in which they are written.
DELETE FROM {schema}.paused_type
WHERE type IN (SELECT type FROM {schema}.paused_type WHERE type = ANY (%(types)s::text[]) ORDER BY type FOR UPDATE)
RETURNING type
