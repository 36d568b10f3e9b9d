-- name: put_schedules
-- Writes schedules by name, in one order. An existing schedule keeps its pause, and its next tick if its times are the
-- same; an unchanged one is not written, nor one that belongs to another owner.
INSERT INTO {schema}.schedule
    (name, type, input, cron, every, time_zone, missed, priority, limit_key, paused, next_at, owner, overlap, jitter,
     starts_at, ends_at, attributes, result_ttl)
SELECT name, type, coalesce(input, 'null'), cron, every, time_zone, missed, priority, limit_key, paused, next_at, owner,
    overlap, jitter, starts_at, ends_at, attributes, result_ttl
FROM json_to_recordset(%(schedules)s::json) AS new (
    name text, type text, input jsonb, cron text, every float8, time_zone text, missed text, priority int,
    limit_key text, paused boolean, next_at timestamptz, owner text, overlap text, jitter float8,
    starts_at timestamptz, ends_at timestamptz, attributes jsonb, result_ttl float8)
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
    overlap = excluded.overlap,
    jitter = excluded.jitter,
    starts_at = excluded.starts_at,
    ends_at = excluded.ends_at,
    attributes = excluded.attributes,
    result_ttl = excluded.result_ttl,
    next_at = CASE WHEN (schedule.cron, schedule.every, schedule.time_zone, schedule.starts_at, schedule.ends_at)
                        IS NOT DISTINCT FROM
                        (excluded.cron, excluded.every, excluded.time_zone, excluded.starts_at, excluded.ends_at)
                   THEN schedule.next_at ELSE excluded.next_at END
WHERE schedule.owner IS NOT DISTINCT FROM excluded.owner
    AND (schedule.type, schedule.input, schedule.cron, schedule.every, schedule.time_zone, schedule.missed,
         schedule.priority, schedule.limit_key, schedule.overlap, schedule.jitter, schedule.starts_at,
         schedule.ends_at, schedule.attributes, schedule.result_ttl)
    IS DISTINCT FROM (excluded.type, excluded.input, excluded.cron, excluded.every, excluded.time_zone,
                      excluded.missed, excluded.priority, excluded.limit_key, excluded.overlap, excluded.jitter,
                      excluded.starts_at, excluded.ends_at, excluded.attributes, excluded.result_ttl)
RETURNING name

-- name: schedule_owners
-- Reads the owners of schedules.
SELECT name, owner FROM {schema}.schedule WHERE name = ANY (%(names)s::text[]) ORDER BY name

-- name: delete_schedules
-- Deletes schedules, with an owner only those of the owner; it locks them in the order in which they are written.
DELETE FROM {schema}.schedule
WHERE name IN (SELECT name FROM {schema}.schedule WHERE name = ANY (%(names)s::text[]) ORDER BY name FOR UPDATE)
    AND (%(owner)s::text IS NULL OR owner = %(owner)s::text)
RETURNING name

-- name: list_schedules
-- Reads all schedules, by name.
SELECT {schedule_columns}
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
SELECT {schedule_columns},
    clock.now, following.seconds
FROM clock CROSS JOIN following LEFT JOIN due ON true
ORDER BY next_at, name

-- name: lock_due_schedule
-- Locks a schedule until the transaction ends, if its tick is still the one that was read. A second caller waits for
-- the row and finds it changed.
SELECT type, overlap, last_chain_id FROM {schema}.schedule
WHERE name = %(name)s AND next_at = %(tick)s AND NOT paused
FOR UPDATE

-- name: lock_schedule
-- Locks a schedule until the transaction ends.
SELECT type, overlap, last_chain_id FROM {schema}.schedule WHERE name = %(name)s FOR UPDATE

-- name: chain_is_open
-- Whether a chain is open. A statement of its own, after the lock: its snapshot has what was committed before that.
SELECT true FROM {schema}.job WHERE id = %(id)s AND chain_status = 'open'

-- name: advance_schedule
-- Advances a schedule, which the transaction has locked, to its next tick.
UPDATE {schema}.schedule
SET next_at = %(next_at)s, last_at = coalesce(%(last_at)s, last_at),
    last_chain_id = coalesce(%(last_chain_id)s, last_chain_id)
WHERE name = %(name)s
RETURNING name

-- name: set_last_chain
-- Records the chain that a schedule started out of turn.
UPDATE {schema}.schedule SET last_chain_id = %(last_chain_id)s WHERE name = %(name)s
RETURNING name

-- name: find_ticks
-- Reads the jobs that have the ids of ticks.
SELECT id, type, status, created_at FROM {schema}.job WHERE id = ANY (%(ids)s::text[])

-- name: now
-- Reads the clock that decides what is due.
SELECT clock_timestamp()
