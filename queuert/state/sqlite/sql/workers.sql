-- name: record_heartbeat
-- Records that a worker is alive. Its first heartbeat sets the time of its start.
INSERT INTO queuert_worker (id, name, host, pid, version, job_types, concurrency, running, state, started_at, seen_at,
    expires_at)
VALUES (:id, :name, :host, :pid, :version, :job_types, :concurrency, :running, :state, :started_at, :now, :expires)
ON CONFLICT (id) DO UPDATE SET name = excluded.name, host = excluded.host, pid = excluded.pid,
    version = excluded.version, job_types = excluded.job_types, concurrency = excluded.concurrency,
    running = excluded.running, state = excluded.state, seen_at = excluded.seen_at, expires_at = excluded.expires_at

-- name: record_limits
-- The limits of a job type, if they have changed.
INSERT INTO queuert_type_limit (type, limits) VALUES (:type, :limits)
ON CONFLICT (type) DO UPDATE SET limits = excluded.limits WHERE limits <> excluded.limits

-- name: delete_limits
-- A job type has no limits any more.
DELETE FROM queuert_type_limit WHERE type = :type

-- name: read_limits
-- The limits of a job type.
SELECT limits FROM queuert_type_limit WHERE type = :type

-- name: record_traits
-- What is particular to a job type.
INSERT INTO queuert_type_trait (type, completed_by_client, overdue_seconds, closes_with_parent)
VALUES (:type, :completed_by_client, :overdue_after, :closes_with_parent)
ON CONFLICT (type) DO UPDATE SET completed_by_client = excluded.completed_by_client,
    overdue_seconds = excluded.overdue_seconds, closes_with_parent = excluded.closes_with_parent
    WHERE (completed_by_client, overdue_seconds, closes_with_parent)
        IS NOT (excluded.completed_by_client, excluded.overdue_seconds, excluded.closes_with_parent)

-- name: delete_traits
-- Nothing is particular to a job type any more.
DELETE FROM queuert_type_trait WHERE type = :type

-- name: list_type_traits
-- Reads what is particular to job types, by name.
SELECT type, completed_by_client, overdue_seconds, closes_with_parent FROM queuert_type_trait ORDER BY type

-- name: is_completed_by_client
-- Whether clients complete the jobs of a type.
SELECT 1 FROM queuert_type_trait WHERE type = :type AND completed_by_client

-- name: delete_stale_workers
-- Deletes workers whose heartbeat has expired.
DELETE FROM queuert_worker WHERE expires_at <= :now

-- name: remove_worker
-- Deletes a worker that has stopped.
DELETE FROM queuert_worker WHERE id = :id

-- name: list_workers
-- Reads the workers whose heartbeat has not expired, the longest running first.
SELECT {worker_columns} FROM queuert_worker
WHERE expires_at > :now ORDER BY started_at, id

-- name: count_held
-- Counts the running jobs of all workers. Batches of bulk operations need no slot.
SELECT holder, count(*) FROM queuert_job INDEXED BY queuert_job_running
WHERE status = 'running' AND type <> 'queuert.bulk_operation' GROUP BY holder

-- name: find_activity
-- What a worker did of a job type in a minute, and the last report that was added.
SELECT report, numbers FROM queuert_activity
WHERE seconds = :seconds AND begins_at = :begins_at AND type = :type AND worker = :worker

-- name: write_activity
-- Writes what a worker did of a job type in a minute, or all workers in an hour.
INSERT INTO queuert_activity (seconds, begins_at, type, worker, report, numbers)
VALUES (:seconds, :begins_at, :type, :worker, :report, :numbers)
ON CONFLICT (seconds, begins_at, type, worker) DO UPDATE SET report = excluded.report, numbers = excluded.numbers

-- name: get_activity
-- Reads the minutes, or the hours, that begin after a time and before another.
SELECT begins_at, seconds, type, worker, numbers FROM queuert_activity
WHERE seconds = :seconds AND begins_at > :after AND begins_at < :before

-- name: find_old_activity
-- Reads the oldest minutes, or hours, that begin before a time.
SELECT begins_at, seconds, type, worker, numbers FROM queuert_activity
WHERE seconds = :seconds AND begins_at < :before
ORDER BY begins_at, type, worker LIMIT :limit

-- name: delete_activity
-- Deletes one minute of a worker, or one hour.
DELETE FROM queuert_activity
WHERE seconds = :seconds AND begins_at = :begins_at AND type = :type AND worker = :worker
