-- All schedules, by name.
SELECT name, type, input, cron, every, time_zone, missed, priority, limit_key, paused, next_at, last_at
FROM queuert_schedule ORDER BY name
