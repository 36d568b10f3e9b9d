-- name: put_schedules
-- Writes schedules by name, in one order. An existing schedule keeps its pause, and its next tick if its times are the
-- same; an unchanged one is not written.
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

-- name: delete_schedules
-- Deletes schedules, which it locks in the order in which they are written.
DELETE FROM {schema}.schedule
WHERE name IN (SELECT name FROM {schema}.schedule WHERE name = ANY (%(names)s::text[]) ORDER BY name FOR UPDATE)
RETURNING name

-- name: list_schedules
-- Reads all schedules, by name.
SELECT name, type, input::text, cron, every, time_zone, missed, priority, limit_key, paused, next_at, last_at
FROM {schema}.schedule
ORDER BY name

-- name: pause_schedules
-- Pauses or resumes schedules, which it locks in the order in which they are written. The next tick does not change.
UPDATE {schema}.schedule
SET paused = %(paused)s, updated_at = clock_timestamp()
WHERE name IN (SELECT name FROM {schema}.schedule WHERE name = ANY (%(names)s::text[]) ORDER BY name FOR UPDATE)
RETURNING name

-- name: schedule_delays
-- Reads the schedules that are due, the longest due first, without what an observer may not see.
SELECT name, type, extract(epoch FROM clock_timestamp() - next_at)::float8
FROM {schema}.schedule
WHERE NOT paused AND next_at <= clock_timestamp()
ORDER BY next_at, name

-- name: due_schedules
-- Reads the schedules of these types whose next tick has come, the longest due first, and the seconds until the next
-- tick of the others, at one reading of the clock. If none is due, there is one row without a name.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
due AS (
    SELECT schedule.* FROM clock, {schema}.schedule
    WHERE NOT paused AND next_at <= clock.now AND type = ANY (%(types)s::text[])
    ORDER BY next_at, name LIMIT %(limit)s
),
following AS (
    SELECT extract(epoch FROM min(next_at) - min(clock.now))::float8 AS seconds
    FROM clock, {schema}.schedule
    WHERE NOT paused AND next_at > clock.now AND type = ANY (%(types)s::text[])
)
SELECT name, type, input::text, cron, every, time_zone, missed, priority, limit_key, paused, next_at, last_at,
    clock.now, following.seconds
FROM clock CROSS JOIN following LEFT JOIN due ON true
ORDER BY next_at, name

-- name: advance_schedule
-- Advances a schedule to its next tick, if the tick is still the one that was read. A second caller waits for the row
-- and finds it changed.
UPDATE {schema}.schedule
SET next_at = %(next_at)s, last_at = coalesce(%(last_at)s, last_at)
WHERE name = %(name)s AND next_at = %(tick)s AND NOT paused
RETURNING name

-- name: start_scheduled
-- Starts the chains of ticks that do not exist; returns all of them, and which existed.
WITH params AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(jobs)s::json)
        AS new (id text, type text, priority int, input jsonb, trace_context text, limit_key text)
),
written AS (
    INSERT INTO {schema}.job
        (id, type, chain_id, chain_type, chain_status, status, priority, input, trace_context, limit_key)
    SELECT id, type, id, type, 'open', 'ready', priority, coalesce(input, 'null'), trace_context, limit_key
    FROM params
    ORDER BY id COLLATE "C"
    ON CONFLICT (id) DO NOTHING
    RETURNING id, type, status, created_at, scheduled_at
),
event AS (
    {insert_event}
    SELECT 'created', status, id, id, 0, type, type, 0, scheduled_at, NULL, NULL, NULL
    FROM written
    WHERE {event_level:written.type} = 'all'
)
SELECT id, type, status, created_at, false FROM written
UNION ALL
SELECT id, type, status, created_at, true FROM {schema}.job WHERE id = ANY (ARRAY(SELECT id FROM params))

-- name: now
-- Reads the clock that decides what is due.
SELECT clock_timestamp()
