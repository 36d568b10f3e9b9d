-- Write schedules by name, in one order. One that is there keeps its pause, and its next tick if its times are the same;
-- one that is the same altogether is not written.
INSERT INTO {schema}.schedule
    (name, type, input, cron, every, time_zone, missed, priority, limit_key, paused, next_at)
SELECT name, type, coalesce(input, 'null'), cron, every, time_zone, missed, priority, limit_key, paused, next_at
FROM json_to_recordset(%(schedules)s::json) AS new (
    name text, type text, input jsonb, cron text, every float8, time_zone text, missed text, priority int,
    limit_key text, paused boolean, next_at timestamptz)
ORDER BY name COLLATE "C"
ON CONFLICT (name) DO UPDATE
SET updated_at = clock_timestamp(),
    type = excluded.type,
    input = excluded.input,
    cron = excluded.cron,
    every = excluded.every,
    time_zone = excluded.time_zone,
    missed = excluded.missed,
    priority = excluded.priority,
    limit_key = excluded.limit_key,
    next_at = CASE WHEN (schedule.cron, schedule.every, schedule.time_zone)
                        IS NOT DISTINCT FROM (excluded.cron, excluded.every, excluded.time_zone)
                   THEN schedule.next_at ELSE excluded.next_at END
WHERE (schedule.type, schedule.input, schedule.cron, schedule.every, schedule.time_zone, schedule.missed,
       schedule.priority, schedule.limit_key)
    IS DISTINCT FROM (excluded.type, excluded.input, excluded.cron, excluded.every, excluded.time_zone,
                      excluded.missed, excluded.priority, excluded.limit_key)
RETURNING name
