-- The schedules of a type whose next tick has come, the longest due first.
SELECT name, type, input, cron, every, time_zone, missed, priority, limit_key, paused, next_at, last_at
FROM queuert_schedule WHERE type = :type AND NOT paused AND next_at <= :now ORDER BY next_at, name LIMIT :limit
