-- name: finish_workerless
-- Finishes a job for a client. Its lease is lost with the token.
UPDATE queuert_job SET status = :status, finished_at = :now, output = :output, error = :error,
    continued_by = :continued_by, lease_token = NULL, lease_expires_at = NULL
WHERE id = :id

-- name: retry_job
-- Makes a failed or cancelled job due again; its earlier attempts do not count.
UPDATE queuert_job SET status = :status, scheduled_at = :now, finished_at = NULL, uncounted = attempt, lease_expirations = 0,
    lease_token = NULL, open_blockers = :open
WHERE id = :id

-- name: change_input
-- Gives a job that waits, or is about to be retried, another input.
UPDATE queuert_job SET input = :input WHERE id = :id

-- name: change_job
-- Gives a waiting job another due time or priority. A blocked job only keeps the time, for when it is released.
UPDATE queuert_job SET
    scheduled_at = CASE
        WHEN :due IS NULL THEN scheduled_at WHEN :due > :now THEN :due ELSE min(scheduled_at, :now) END,
    status = CASE
        WHEN :due IS NULL OR status = 'blocked' THEN status WHEN :due > :now THEN 'scheduled' ELSE 'ready' END,
    priority = coalesce(:priority, priority)
WHERE id = :id

-- name: reopen_blockers
-- Updates the blockers of a job to the present status of their chains.
UPDATE queuert_job_blocker SET closed = (SELECT chain_status <> 'open' FROM queuert_job WHERE id = blocker_chain_id)
WHERE job_id = :id

-- name: reopen_chain
-- Reopens a closed chain.
UPDATE queuert_job SET chain_status = 'open', chain_closed_at = NULL, expires_at = NULL, stale_at = NULL WHERE id = :id

-- name: trigger_job
-- Makes a scheduled job due now.
UPDATE queuert_job SET status = 'ready', scheduled_at = min(scheduled_at, :now) WHERE id = :id AND status = 'scheduled'

-- name: delete_blockers
-- Deletes the entries of the blockers of a chain's jobs.
DELETE FROM queuert_job_blocker WHERE job_id IN (SELECT id FROM queuert_job WHERE chain_id = :id)

-- name: delete_jobs
-- Deletes the jobs of a chain.
DELETE FROM queuert_job WHERE chain_id = :id

-- name: delete_references
-- Deletes a chain from the blockers of other jobs.
DELETE FROM queuert_job_blocker WHERE blocker_chain_id = :id

-- name: references
-- Reads the jobs that have a chain as a blocker.
SELECT job.id, job.chain_id, job.status
FROM queuert_job_blocker AS entry JOIN queuert_job AS job ON job.id = entry.job_id
WHERE blocker_chain_id = :id

-- name: stranded
-- Reads a page of blocked jobs, and whether they have an open blocker.
SELECT id, type, scheduled_at,
    EXISTS (SELECT 1 FROM queuert_job_blocker AS entry JOIN queuert_job AS chain ON chain.id = entry.blocker_chain_id
            WHERE entry.job_id = job.id AND chain.chain_status = 'open')
FROM queuert_job AS job WHERE status = 'blocked' AND id > :cursor ORDER BY id LIMIT :limit

-- name: release_stranded
-- Releases a stranded job.
UPDATE queuert_job SET status = :status, open_blockers = 0, scheduled_at = max(scheduled_at, :now) WHERE id = :id

-- name: pause_type
-- Pauses a job type. A paused type keeps its time and who paused it, and its reason unless a new one is given.
INSERT INTO queuert_paused_type (type, paused_at, reason, paused_by) VALUES (:type, :now, :reason, :by)
ON CONFLICT (type) DO UPDATE SET reason = coalesce(excluded.reason, reason)

-- name: list_paused_job_types
-- Reads the paused job types, by name.
SELECT type, paused_at, reason, paused_by FROM queuert_paused_type ORDER BY type

-- name: resume_type
-- Resumes a job type.
DELETE FROM queuert_paused_type WHERE type = :type

-- name: last_job
-- Reads the last job of a chain, and the status of the chain.
SELECT {tail_columns}
FROM queuert_job AS root
JOIN queuert_job AS tail ON tail.chain_id = root.id
WHERE root.id = :id AND root.chain_index = 0
ORDER BY tail.chain_index DESC LIMIT 1
