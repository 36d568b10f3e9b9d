-- The paused job types, by name.
SELECT type, paused_at, reason FROM queuert_paused_type ORDER BY type
