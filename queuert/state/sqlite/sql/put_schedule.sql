-- Write a schedule. One that is there keeps its pause, and its next tick if its times are the same.
INSERT INTO queuert_schedule (name, type, input, cron, every, time_zone, missed, priority, limit_key, paused, next_at)
VALUES (:name, :type, :input, :cron, :every, :time_zone, :missed, :priority, :limit_key, :paused, :next_at)
ON CONFLICT (name) DO UPDATE SET type = excluded.type, input = excluded.input, missed = excluded.missed,
    priority = excluded.priority, limit_key = excluded.limit_key,
    next_at = CASE WHEN cron IS excluded.cron AND every IS excluded.every AND time_zone = excluded.time_zone
        THEN next_at ELSE excluded.next_at END,
    cron = excluded.cron, every = excluded.every, time_zone = excluded.time_zone
