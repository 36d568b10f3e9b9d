-- Set the level of types, in one order.
INSERT INTO {schema}.event_level (type, level)
SELECT type, %(level)s FROM unnest(%(types)s::text[]) AS asked (type)
ORDER BY type COLLATE "C"
ON CONFLICT (type) DO UPDATE SET level = excluded.level
RETURNING type
