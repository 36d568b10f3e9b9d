-- name: find_duplicates
-- Reads the chains of a deduplication key that have not expired, the newest first.
SELECT {first_job_columns} FROM queuert_job
WHERE type = :type AND deduplication_key = :key AND created_at >= :since
    AND (expires_at IS NULL OR expires_at > :now)
ORDER BY created_at DESC LIMIT :limit

-- name: find_first_job
-- Reads the first job of a chain, or another job of that id.
SELECT {first_job_columns} FROM queuert_job WHERE id = :id

-- name: find_open_duplicates
-- Reads the open chains of a deduplication key, the newest first.
SELECT {first_job_columns} FROM queuert_job
WHERE type = :type AND deduplication_key = :key AND chain_status = 'open' AND created_at >= :since
ORDER BY created_at DESC LIMIT :limit

-- name: find_waiting_duplicates
-- Reads the open chains of a deduplication key whose first jobs have not begun, the newest first.
SELECT {first_job_columns} FROM queuert_job
WHERE type = :type AND deduplication_key = :key AND chain_status = 'open' AND status IN ('scheduled', 'ready')
    AND attempt = 0
ORDER BY created_at DESC LIMIT :limit

-- name: debounce
-- Gives a waiting job the input and the due time of a newer start.
UPDATE queuert_job SET input = :input, scheduled_at = :scheduled_at, status = :status WHERE id = :id

-- name: insert_job
-- Writes a job: the first of a chain, or a continuation, which is kept as long as the chain.
INSERT INTO queuert_job (id, type, chain_id, chain_type, chain_index, status, chain_status, priority, created_at,
    scheduled_at, open_blockers, blocker_count, input, trace_context, deduplication_key, limit_key, attributes,
    max_attempts, result_ttl)
VALUES (:id, :type, :chain_id, :chain_type, :chain_index, :status, :chain_status, :priority, :created_at,
    :scheduled_at, :open_blockers, :blocker_count, :input, :trace_context, :deduplication_key, :limit_key, :attributes,
    :max_attempts,
    CASE WHEN :chain_index = 0 THEN :result_ttl ELSE (SELECT result_ttl FROM queuert_job WHERE id = :chain_id) END)

-- name: insert_start
-- Records that an attempt of a type with a rate began.
INSERT INTO queuert_limit_start (type, limit_key, started_at) VALUES (:type, :key, :now)

-- name: insert_attribute
-- Adds an attribute of a chain to the index.
INSERT INTO queuert_chain_attribute (name, value, created_at, chain_id) VALUES (:name, :value, :created_at, :chain_id)

-- name: insert_blocker
-- Adds a blocker to a job, unless the job has it.
INSERT INTO queuert_job_blocker (job_id, position, blocker_chain_id, closed) VALUES (:job_id, :position, :chain_id, :closed)
ON CONFLICT (blocker_chain_id, job_id) DO NOTHING

-- name: last_created
-- Reads when the newest job was created.
SELECT max(created_at) FROM queuert_job

-- name: blocked_by_closed
-- Reads the jobs that have a closed chain among their blockers and still wait for others.
SELECT job.id, job.open_blockers FROM queuert_job_blocker AS entry JOIN queuert_job AS job ON job.id = entry.job_id
WHERE blocker_chain_id = :id AND closed AND job.status = 'blocked'

-- name: block_job
-- Adds to the number of blockers of a job.
UPDATE queuert_job SET status = :status, blocker_count = blocker_count + :added, open_blockers = open_blockers + :open
WHERE id = :id

-- name: mark_has_dependents
-- Marks a chain as having dependents.
UPDATE queuert_job SET has_dependents = 1 WHERE id = :id AND NOT has_dependents
