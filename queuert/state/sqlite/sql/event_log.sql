-- name: add_event
-- Writes an event of a job as its row is now, if the level of its type says so. The attempt of `released` is the one that
-- the release has taken back.
INSERT INTO queuert_event (happened_at, kind, status, job_id, chain_id, chain_index, type, chain_type, attempt,
    scheduled_at, started_at, worker, error, progress)
SELECT :now, :kind, coalesce(:status, status), id, chain_id, chain_index, type, chain_type,
    attempt + (:kind = 'released'), scheduled_at, started_at, CASE WHEN :of_worker THEN holder END,
    CASE WHEN :kind IN ('retried', 'failed', 'cancelled', 'lease_expired') THEN error END,
    CASE WHEN :kind IN ('progressed', 'phase_started', 'phase_completed') THEN progress END
FROM queuert_job AS job
WHERE id = :id
    AND CASE coalesce((SELECT level FROM queuert_event_level AS own WHERE own.type = job.type),
                      (SELECT level FROM queuert_event_log))
        WHEN 'all' THEN 1
        WHEN 'terminal' THEN :kind IN ('completed', 'continued', 'failed', 'cancelled', 'retried_by_hand', 'deleted', 'stale')
            OR (:kind = 'lease_expired' AND status = 'failed')
        ELSE 0 END

-- name: list_events
-- Reads the events between two numbers that match, the newest first.
SELECT {event_columns}
FROM queuert_event
WHERE seq > :low AND seq < :high
    AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
    AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
    AND (:chain IS NULL OR chain_id = :chain)
ORDER BY seq DESC LIMIT :limit

-- name: list_events_oldest_first
-- Reads the events between two numbers that match, the oldest first.
SELECT {event_columns}
FROM queuert_event
WHERE seq > :low AND seq < :high
    AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
    AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
    AND (:chain IS NULL OR chain_id = :chain)
ORDER BY seq LIMIT :limit

-- name: event_log
-- Reads the settings of the event log, the newest number that retention has deleted, and the last number.
SELECT level, keep_days, id, dropped_seq, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'queuert_event'), 0)
FROM queuert_event_log

-- name: event_time
-- Reads the time of an event.
SELECT happened_at FROM queuert_event WHERE seq = :seq

-- name: event_levels
-- Reads the levels of job types.
SELECT type, level FROM queuert_event_level ORDER BY type

-- name: set_event_default
-- Sets what holds for the whole log; null keeps the value.
UPDATE queuert_event_log SET level = coalesce(:level, level), keep_days = coalesce(:days, keep_days)

-- name: set_event_level
-- Sets the level of a job type.
INSERT INTO queuert_event_level (type, level) VALUES (:type, :level) ON CONFLICT (type) DO UPDATE SET level = excluded.level

-- name: delete_event_level
-- Removes the level of a job type.
DELETE FROM queuert_event_level WHERE type = :type

-- name: oldest_event_time
-- Reads the time of the oldest event.
SELECT happened_at FROM queuert_event ORDER BY seq LIMIT 1

-- name: old_events
-- Reads the number of the last of the oldest events, of some, that was written before a time.
SELECT max(seq)
FROM (SELECT seq, happened_at FROM queuert_event ORDER BY seq LIMIT :limit) WHERE happened_at < :before

-- name: delete_old_events
-- Deletes the events up to a number.
DELETE FROM queuert_event WHERE seq <= :seq

-- name: set_dropped_events
-- Records up to which number retention has deleted events.
UPDATE queuert_event_log SET dropped_seq = :seq
