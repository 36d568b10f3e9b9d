-- name: finish_job
-- Finishes an attempt. The token stays as evidence of which lease finished it.
UPDATE queuert_job SET status = :status, finished_at = :finished_at, scheduled_at = coalesce(:scheduled_at, scheduled_at),
    uncounted = uncounted + :uncounted, lease_expirations = lease_expirations + :crashed, output = :output,
    error = :error, attempt_trace_context = :trace, continued_by = :continued_by, lease_expires_at = NULL
WHERE id = :id

-- name: read_inherited
-- Reads what a job that another creates may inherit: its limit key, and the attributes of its chain.
SELECT job.limit_key, root.attributes FROM queuert_job AS job JOIN queuert_job AS root ON root.id = job.chain_id
WHERE job.id = :id

-- name: failures
-- Reads the newest attempt of a job, and the attempts before that failed.
SELECT attempt, started_at, holder, failures FROM queuert_job WHERE id = :id

-- name: set_failures
-- Writes the attempts of a job that failed.
UPDATE queuert_job SET failures = :failures WHERE id = :id

-- name: close_chain
-- Closes a chain. It expires after the TTL of the finish, or else after that of its start.
UPDATE queuert_job SET chain_status = :status, chain_closed_at = :now,
    expires_at = :now + CAST(coalesce(:ttl, result_ttl) * 1000000 AS INTEGER)
WHERE id = :id

-- name: chain_duration
-- Read how long a closed chain took, in microseconds.
SELECT chain_closed_at - created_at FROM queuert_job WHERE id = :id

-- name: close_blockers
-- Marks a chain as closed among the blockers of its dependents.
UPDATE queuert_job_blocker SET closed = 1 WHERE blocker_chain_id = :id AND NOT closed

-- name: unblock_job
-- Records that one blocker of a job has closed.
UPDATE queuert_job SET open_blockers = open_blockers - 1, status = :status, scheduled_at = :scheduled_at WHERE id = :id

-- name: reblock_job
-- Marks a reopened chain as open among the blockers of its dependents.
UPDATE queuert_job_blocker SET closed = 0 WHERE blocker_chain_id = :id AND job_id = :job_id AND closed

-- name: lease_state
-- Reads which token holds a job, or finished it.
SELECT id, status, lease_token, lease_expires_at IS NOT NULL FROM queuert_job WHERE id = :id

-- name: reap_job
-- Turns an expired lease into a failed attempt.
UPDATE queuert_job SET status = :status, scheduled_at = coalesce(:scheduled_at, scheduled_at), finished_at = :finished_at,
    lease_expirations = lease_expirations + 1, lease_token = NULL, lease_expires_at = NULL, error = :error
WHERE id = :id

-- name: expired_leases
-- Reads the expired leases of a type, the longest expired first.
SELECT id, type, chain_id, chain_type, attempt, uncounted, lease_expirations, holder, max_attempts
FROM queuert_job
WHERE type = :type AND status = 'running' AND lease_expires_at <= :now ORDER BY lease_expires_at LIMIT :limit

-- name: find_expired
-- Reads a page of expired chains, the earliest expiry first, and whether a reader of the event log still needs them.
SELECT id, expires_at, coalesce(max(chain_closed_at, coalesce(stale_at, 0)) >= :closed_before, 0)
FROM queuert_job WHERE expires_at <= :now AND (expires_at, id) > (:after, :after_id)
ORDER BY expires_at, id LIMIT :limit

-- name: reblock_retried
-- Sets the number of open blockers of a job.
UPDATE queuert_job SET open_blockers = :open WHERE id = :job_id

-- name: open_dependents
-- Reads the jobs that wait for a chain.
SELECT job.id, job.type, job.status, job.open_blockers, job.scheduled_at
FROM queuert_job_blocker AS entry JOIN queuert_job AS job ON job.id = entry.job_id
WHERE blocker_chain_id = :id AND NOT closed ORDER BY job.created_at, job.id
