-- name: finish_job
-- End an attempt. The token stays as evidence of who ended it.
UPDATE queuert_job SET status = :status, finished_at = :finished_at, scheduled_at = coalesce(:scheduled_at, scheduled_at),
    uncounted = uncounted + :uncounted, lease_expirations = lease_expirations + :crashed, output = :output,
    error = :error, continued_by = :continued_by, lease_expires_at = NULL
WHERE id = :id

-- name: close_chain
-- A chain ends, and expires when its TTL is over: the one of its finish, or that of its start.
UPDATE queuert_job SET chain_status = :status, chain_closed_at = :now,
    expires_at = :now + CAST(coalesce(:ttl, result_ttl) * 1000000 AS INTEGER)
WHERE id = :id

-- name: chain_duration
-- Read how long a closed chain took, in microseconds.
SELECT chain_closed_at - created_at FROM queuert_job WHERE id = :id

-- name: close_blockers
-- A chain that jobs wait for has closed.
UPDATE queuert_job_blocker SET closed = 1 WHERE blocker_chain_id = :id AND NOT closed

-- name: unblock_job
-- One blocker of a job has closed.
UPDATE queuert_job SET open_blockers = open_blockers - 1, status = :status, scheduled_at = :scheduled_at WHERE id = :id

-- name: reblock_job
-- A job waits for a chain, which was closed and is open, again.
UPDATE queuert_job_blocker SET closed = 0 WHERE blocker_chain_id = :id AND job_id = :job_id AND closed

-- name: lease_state
-- Who holds, or ended, a job.
SELECT id, status, lease_token, lease_expires_at IS NOT NULL FROM queuert_job WHERE id = :id

-- name: reap_job
-- An expired lease is a failed attempt.
UPDATE queuert_job SET status = :status, scheduled_at = coalesce(:scheduled_at, scheduled_at), finished_at = :finished_at,
    lease_expirations = lease_expirations + 1, lease_token = NULL, lease_expires_at = NULL, error = :error
WHERE id = :id

-- name: expired
-- Leases of a type that have expired, the longest expired first.
SELECT id, type, chain_id, attempt, uncounted, lease_expirations, holder FROM queuert_job
WHERE type = :type AND status = 'running' AND lease_expires_at <= :now ORDER BY lease_expires_at LIMIT :limit

-- name: find_expired
-- Chains that have expired, from a place on, those that did first at first.
SELECT id, expires_at FROM queuert_job WHERE expires_at <= :now AND (expires_at, id) > (:after, :after_id)
ORDER BY expires_at, id LIMIT :limit

-- name: reblock_retried
-- How many chains a blocked job waits for.
UPDATE queuert_job SET open_blockers = :open WHERE id = :job_id

-- name: open_dependents
-- The jobs that wait for a chain.
SELECT job.id, job.type, job.status, job.open_blockers, job.scheduled_at
FROM queuert_job_blocker AS entry JOIN queuert_job AS job ON job.id = entry.job_id
WHERE blocker_chain_id = :id AND NOT closed ORDER BY job.created_at, job.id
