-- The paused job types, by name.
SELECT type, paused_at, reason FROM {schema}.paused_type ORDER BY type
