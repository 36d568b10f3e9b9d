-- name: count_unkeyed_starts
-- Counts the attempts of jobs of a type without a limit key that began since a time.
SELECT count(*) FROM queuert_limit_start WHERE type = :type AND limit_key IS NULL AND started_at > :since

-- name: use_of_key
-- How many jobs of a limit key run, and how many attempts have begun since a moment.
SELECT (SELECT count(*) FROM queuert_job WHERE type = :type AND status = 'running' AND limit_key = :key),
    (SELECT count(*) FROM queuert_limit_start WHERE type = :type AND limit_key = :key AND started_at > :since)

-- name: prune_rate_window
-- Deletes records of attempts that began before the window of their type, some at a time.
DELETE FROM queuert_limit_start WHERE rowid IN (
    SELECT rowid FROM queuert_limit_start WHERE type = :type AND started_at <= :since LIMIT 1000)

-- name: count_due
-- Counts the due scheduled jobs of a type, and reads since when the first of them is due.
SELECT count(*), min(scheduled_at) FROM queuert_job
WHERE type = :type AND status = 'scheduled' AND scheduled_at <= :now
