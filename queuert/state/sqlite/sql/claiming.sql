-- name: any_ready
-- Reads whether a type has ready jobs.
SELECT 1 FROM queuert_job WHERE type = :type AND status = 'ready' LIMIT 1

-- name: claim
-- Leases one job.
UPDATE queuert_job SET status = 'running', attempt = attempt + 1, started_at = :now, lease_expires_at = :expires,
    lease_token = :token, holder = :holder
WHERE id = :id
RETURNING {claimed_columns}, limit_key

-- name: next_due_job
-- Reads the longest due scheduled jobs of a type.
SELECT id, attempt - uncounted - lease_expirations - priority AS rank, scheduled_at, rowid FROM queuert_job
WHERE type = :type AND status = 'scheduled' AND scheduled_at <= :now ORDER BY scheduled_at, rowid LIMIT :limit

-- name: next_of_key
-- Reads the best ready jobs of a type and limit key, from a rank on, in the order of the index.
SELECT id, attempt - uncounted - lease_expirations - priority AS rank, scheduled_at, rowid FROM queuert_job
WHERE type = :type AND status = 'ready' AND limit_key IS :key
    AND attempt - uncounted - lease_expirations - priority >= :first_rank
ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at, rowid LIMIT :limit

-- name: next_ready
-- Reads the best ready jobs of a type, from a rank on, in the order of the index.
SELECT id, attempt - uncounted - lease_expirations - priority AS rank, scheduled_at, rowid FROM queuert_job
WHERE type = :type AND status = 'ready' AND attempt - uncounted - lease_expirations - priority >= :first_rank
ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at, rowid LIMIT :limit

-- name: next_scheduled
-- Reads when the next scheduled job of a type is due.
SELECT min(scheduled_at) FROM queuert_job WHERE type = :type AND status = 'scheduled'

-- name: next_expiry
-- Reads when the earliest lease of a type expires.
SELECT min(lease_expires_at) FROM queuert_job WHERE type = :type AND status = 'running'

-- name: promote_due
-- Makes due scheduled jobs of a type ready, the longest due first, so that limits need only consider ready ones.
UPDATE queuert_job SET status = 'ready' WHERE rowid IN (
    SELECT rowid FROM queuert_job WHERE type = :type AND status = 'scheduled' AND scheduled_at <= :now
    ORDER BY scheduled_at LIMIT :limit)

-- name: ready_keys
-- Reads the limit keys of a type that have ready jobs, after a key, with one index step for each; with the number of
-- running jobs of each, and of attempts that began since a time. A key without ready jobs ends the list.
WITH RECURSIVE found (key, place) AS (
    SELECT min(limit_key), 1 FROM queuert_job WHERE type = :type AND status = 'ready' AND limit_key > :from
    UNION ALL
    SELECT (SELECT min(limit_key) FROM queuert_job
            WHERE type = :type AND status = 'ready' AND limit_key > found.key), place + 1
    FROM found WHERE key IS NOT NULL AND place < :limit
)
SELECT key,
    CASE WHEN :per_key THEN (SELECT count(*) FROM queuert_job
                             WHERE type = :type AND status = 'running' AND limit_key = key) ELSE 0 END,
    CASE WHEN :rated THEN (SELECT count(*) FROM queuert_limit_start
                           WHERE type = :type AND limit_key = key AND started_at > :since) ELSE 0 END
FROM found WHERE key IS NOT NULL

-- name: oldest_ready
-- Reads since when the longest due of the ready jobs of a type is due.
SELECT min(scheduled_at) FROM queuert_job INDEXED BY queuert_job_ready WHERE type = :type AND status = 'ready'

-- name: release
-- Releases a job that was claimed and not started. The attempt does not count.
UPDATE queuert_job SET status = 'ready', attempt = attempt - 1, lease_token = NULL, lease_expires_at = NULL
WHERE id = :id AND lease_token = :token AND lease_expires_at IS NOT NULL

-- name: release_claim
-- Releases all jobs of a type that one claim took.
UPDATE queuert_job SET status = 'ready', attempt = attempt - 1, lease_token = NULL, lease_expires_at = NULL
WHERE type = :type AND status = 'running' AND lease_token = :token
RETURNING id

-- name: renew
-- Extends a lease that is still held.
UPDATE queuert_job SET lease_expires_at = :expires, progress = coalesce(:progress, progress)
WHERE id = :id AND lease_token = :token AND lease_expires_at IS NOT NULL

-- name: first_in_order
-- Reads the first job of the chain of a key that goes first, if it may begin: it is ready, and no other chain of the key
-- has begun and goes on. Chains that have begun go before the others, which go in the order of their starts.
SELECT found.id, found.attempt - found.uncounted - found.lease_expirations - found.priority, found.scheduled_at, found.rowid
FROM (
    SELECT *, rowid FROM queuert_job WHERE type = :type AND limit_key = :key AND chain_status = 'open'
    ORDER BY (attempt = 0 AND status <> 'continued'), created_at LIMIT 1
) AS found
WHERE found.status = 'ready' AND found.attempt - found.uncounted - found.lease_expirations - found.priority >= :first_rank
    AND NOT EXISTS (
        SELECT 1 FROM queuert_job
        WHERE type = :type AND limit_key = :key AND chain_status = 'open' AND (attempt = 0 AND status <> 'continued') = 0
            AND status IN ('running', 'continued'))

-- name: later_jobs
-- Reads the ready jobs of a type with a limit key that continue chains, the longest there first.
SELECT id, attempt - uncounted - lease_expirations - priority, scheduled_at, rowid, limit_key
FROM queuert_job INDEXED BY queuert_job_later_ready
WHERE type = :type AND status = 'ready' AND chain_index > 0 AND limit_key IS NOT NULL
    AND attempt - uncounted - lease_expirations - priority >= :first_rank
ORDER BY created_at LIMIT :limit

-- name: is_paused
-- Reads whether a type is paused.
SELECT 1 FROM queuert_paused_type WHERE type = :type

-- name: count_running
-- Counts the running jobs of a type.
SELECT count(*) FROM queuert_job WHERE type = :type AND status = 'running'

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
