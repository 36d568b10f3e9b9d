-- name: advance_schedule
-- Advances a schedule.
UPDATE queuert_schedule SET next_at = :next_at, last_at = coalesce(:last_at, last_at)
WHERE name = :name

-- name: chain_is_open
-- Whether a chain is open.
SELECT 1 FROM queuert_job WHERE id = :id AND chain_status = 'open'

-- name: delete_schedule
-- Deletes a schedule, with an owner only one of the owner; its chains remain.
DELETE FROM queuert_schedule WHERE name = :name AND (:owner IS NULL OR owner = :owner)

-- name: find_due_schedule
-- Reads how a schedule starts chains, if its next tick still is this one.
SELECT type, overlap, last_chain_id FROM queuert_schedule WHERE name = :name AND next_at = :tick AND NOT paused

-- name: find_schedule
-- Reads how a schedule starts chains.
SELECT type, overlap, last_chain_id FROM queuert_schedule WHERE name = :name

-- name: due_schedules
-- Reads the schedules of a type whose next tick has come, the longest due first.
SELECT {schedule_columns}
FROM queuert_schedule WHERE type = :type AND NOT paused AND next_at <= :now ORDER BY next_at, name LIMIT :limit

-- name: list_schedules
-- Reads all schedules, by name.
SELECT {schedule_columns}
FROM queuert_schedule ORDER BY name

-- name: next_tick
-- Reads when the next of the other schedules of a type is due.
SELECT min(next_at) FROM queuert_schedule WHERE type = :type AND NOT paused AND next_at > :now

-- name: pause_schedule
-- Pauses or resumes a schedule. The next tick does not change.
UPDATE queuert_schedule SET paused = :paused WHERE name = :name

-- name: put_schedule
-- Writes a schedule. An existing one keeps its pause, and its next tick if its times are the same.
INSERT INTO queuert_schedule (name, type, input, cron, every, time_zone, missed, priority, limit_key, paused, next_at,
    owner, overlap, jitter, starts_at, ends_at, attributes, result_ttl)
VALUES (:name, :type, :input, :cron, :every, :time_zone, :missed, :priority, :limit_key, :paused, :next_at,
    :owner, :overlap, :jitter, :starts_at, :ends_at, :attributes, :result_ttl)
ON CONFLICT (name) DO UPDATE SET type = excluded.type, input = excluded.input, missed = excluded.missed,
    priority = excluded.priority, limit_key = excluded.limit_key,
    next_at = CASE WHEN cron IS excluded.cron AND every IS excluded.every AND time_zone = excluded.time_zone
            AND starts_at IS excluded.starts_at AND ends_at IS excluded.ends_at
        THEN next_at ELSE excluded.next_at END,
    cron = excluded.cron, every = excluded.every, time_zone = excluded.time_zone, overlap = excluded.overlap,
    jitter = excluded.jitter, starts_at = excluded.starts_at, ends_at = excluded.ends_at,
    attributes = excluded.attributes, result_ttl = excluded.result_ttl

-- name: schedule_owner
-- Reads the owner of a schedule.
SELECT name, owner FROM queuert_schedule WHERE name = :name

-- name: set_last_chain
-- Records the chain that a schedule started last.
UPDATE queuert_schedule SET last_chain_id = :last_chain_id WHERE name = :name

-- name: schedule_delays
-- The schedules that are due, the longest due first.
SELECT name, type, next_at FROM queuert_schedule WHERE NOT paused AND next_at <= :now ORDER BY next_at, name
