-- All schedules, by name.
SELECT name, type, input::text, cron, every, time_zone, missed, priority, limit_key, paused, next_at, last_at
FROM {schema}.schedule
ORDER BY name
