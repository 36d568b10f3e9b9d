-- name: any_ready
-- Whether a type has ready jobs.
SELECT 1 FROM queuert_job WHERE type = :type AND status = 'ready' LIMIT 1

-- name: claim
-- Lease one job.
UPDATE queuert_job SET status = 'running', attempt = attempt + 1, started_at = :now, lease_expires_at = :expires,
    lease_token = :token, holder = :holder
WHERE id = :id
RETURNING id, type, chain_id, chain_type, chain_index, priority, attempt, uncounted, lease_expirations, blocker_count,
    has_dependents, input, created_at, scheduled_at, started_at, trace_context, result_ttl,
    limit_key, attempt_trace_context

-- name: next_due_job
-- The longest due scheduled jobs of a type.
SELECT id, attempt - uncounted - lease_expirations - priority AS rank, scheduled_at, rowid FROM queuert_job
WHERE type = :type AND status = 'scheduled' AND scheduled_at <= :now ORDER BY scheduled_at, rowid LIMIT :limit

-- name: next_of_key
-- The best ready jobs of a type and limit key, from a rank on. The index has their order.
SELECT id, attempt - uncounted - lease_expirations - priority AS rank, scheduled_at, rowid FROM queuert_job
WHERE type = :type AND status = 'ready' AND limit_key IS :key
    AND attempt - uncounted - lease_expirations - priority >= :first_rank
ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at, rowid LIMIT :limit

-- name: next_ready
-- The best ready jobs of a type, from a rank on. The index has their order.
SELECT id, attempt - uncounted - lease_expirations - priority AS rank, scheduled_at, rowid FROM queuert_job
WHERE type = :type AND status = 'ready' AND attempt - uncounted - lease_expirations - priority >= :first_rank
ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at, rowid LIMIT :limit

-- name: next_scheduled
-- When the next scheduled job of a type is due.
SELECT min(scheduled_at) FROM queuert_job WHERE type = :type AND status = 'scheduled'

-- name: next_expiry
-- When the earliest lease of a type expires.
SELECT min(lease_expires_at) FROM queuert_job WHERE type = :type AND status = 'running'

-- name: promote_due
-- Scheduled jobs of a type that are due become ready, the longest due first: so limits need only look at ready ones.
UPDATE queuert_job SET status = 'ready' WHERE rowid IN (
    SELECT rowid FROM queuert_job WHERE type = :type AND status = 'scheduled' AND scheduled_at <= :now
    ORDER BY scheduled_at LIMIT :limit)

-- name: ready_keys
-- The limit keys of a type that have ready jobs, from one on, by jumping from one to the next; with each how many of its jobs
-- run, and how many have begun since a moment. A key without ready jobs ends it.
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
-- Since when the longest due of the ready jobs of a type is due.
SELECT min(scheduled_at) FROM queuert_job INDEXED BY queuert_job_ready WHERE type = :type AND status = 'ready'

-- name: release
-- Release a job that was claimed and not started. The attempt never was.
UPDATE queuert_job SET status = 'ready', attempt = attempt - 1, lease_token = NULL, lease_expires_at = NULL
WHERE id = :id AND lease_token = :token AND lease_expires_at IS NOT NULL

-- name: release_claim
-- Release all that one claim took of a type.
UPDATE queuert_job SET status = 'ready', attempt = attempt - 1, lease_token = NULL, lease_expires_at = NULL
WHERE type = :type AND status = 'running' AND lease_token = :token

-- name: renew
-- Extend a lease that is still held.
UPDATE queuert_job SET lease_expires_at = :expires, progress = coalesce(:progress, progress)
WHERE id = :id AND lease_token = :token AND lease_expires_at IS NOT NULL

-- name: is_paused
-- Whether nothing is claimed of a type.
SELECT 1 FROM queuert_paused_type WHERE type = :type

-- name: count_running
-- Running jobs of a type.
SELECT count(*) FROM queuert_job WHERE type = :type AND status = 'running'
