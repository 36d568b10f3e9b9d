-- name: count_unkeyed_starts
-- Attempts of jobs of a type without a limit key that have begun since a moment.
SELECT count(*) FROM queuert_limit_start WHERE type = :type AND limit_key IS NULL AND started_at > :since

-- name: use_of_key
-- How many jobs of a limit key run, and how many attempts have begun since a moment.
SELECT (SELECT count(*) FROM queuert_job WHERE type = :type AND status = 'running' AND limit_key = :key),
    (SELECT count(*) FROM queuert_limit_start WHERE type = :type AND limit_key = :key AND started_at > :since)

-- name: prune_rate_window
-- Attempts that began before the window of their type; not all at once.
DELETE FROM queuert_limit_start WHERE rowid IN (
    SELECT rowid FROM queuert_limit_start WHERE type = :type AND started_at <= :since LIMIT 1000)

-- name: count_due
-- How many scheduled jobs of a type are due, and since when the first of them is.
SELECT count(*), min(scheduled_at) FROM queuert_job
WHERE type = :type AND status = 'scheduled' AND scheduled_at <= :now
