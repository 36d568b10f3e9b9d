-- Pause job types, in one order. One that is paused keeps its time, and its reason unless there is another.
INSERT INTO {schema}.paused_type (type, reason)
SELECT type, %(reason)s FROM unnest(%(types)s::text[]) AS asked (type)
ORDER BY type COLLATE "C"
ON CONFLICT (type) DO UPDATE SET reason = coalesce(excluded.reason, paused_type.reason)
RETURNING type
