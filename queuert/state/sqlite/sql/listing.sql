-- name: get_chain
-- Reads a chain. An expired chain counts as deleted, whether or not its row exists.
SELECT {chain_columns}
FROM queuert_chain WHERE id = :id AND (:now IS NULL OR expires_at IS NULL OR expires_at > :now)

-- name: chain_status
-- Reads the status of a chain, without its payloads. An expired chain counts as deleted.
SELECT chain_status FROM queuert_job WHERE id = :id AND chain_index = 0 AND (expires_at IS NULL OR expires_at > :now)

-- name: get_chain_state
-- Reads a chain and its last job, without inputs and outputs. An expired chain counts as deleted.
SELECT {chain_state_columns}
FROM queuert_chain AS chain JOIN queuert_job AS tail ON tail.id = chain.tail_id
WHERE chain.id = :id AND (chain.expires_at IS NULL OR chain.expires_at > :now)

-- name: get_job
-- Reads a job. A scheduled job whose time has come is shown as ready.
SELECT {job_columns}
FROM queuert_job WHERE id = :id

-- name: get_blockers
-- Reads the chains that a job waits for or waited for, in order.
SELECT chain.id, chain.type, chain.status, chain.tail_type,
    CASE WHEN chain.status = 'completed' AND :outputs THEN chain.output END, CASE WHEN :outputs THEN chain.error END,
    (SELECT tail.attempt_trace_context FROM queuert_job AS tail WHERE tail.id = chain.tail_id)
FROM queuert_job_blocker AS entry JOIN queuert_chain AS chain ON chain.id = entry.blocker_chain_id
WHERE entry.job_id = :id ORDER BY position

-- name: get_blocker_links
-- Reads which chains the jobs of a chain wait for.
SELECT job.chain_id, job.id, entry.blocker_chain_id
FROM queuert_job AS job JOIN queuert_job_blocker AS entry ON entry.job_id = job.id
WHERE job.chain_id = :id
ORDER BY job.chain_index, entry.position LIMIT :limit

-- name: get_dependents
-- Reads the jobs that have a chain among their blockers. The rows of jobs are found by those of the first table.
SELECT job.chain_id, job.id, job.status
FROM queuert_job_blocker AS entry CROSS JOIN queuert_job AS job ON job.id = entry.job_id
WHERE entry.blocker_chain_id = :id ORDER BY entry.job_id

-- name: chain_jobs
-- Reads the jobs of a chain.
SELECT id, status FROM queuert_job WHERE chain_id = :id

-- name: chain_attributes
-- Reads the attributes of a chain.
SELECT created_at, attributes FROM queuert_job WHERE id = :id AND attributes IS NOT NULL

-- name: blockers_of_chain
-- Reads the blockers of the jobs of a chain.
SELECT DISTINCT blocker_chain_id
FROM queuert_job AS job JOIN queuert_job_blocker AS entry ON entry.job_id = job.id
WHERE job.chain_id = :id

-- name: count_open_blockers
-- Counts the open blockers of a job.
SELECT count(*) FROM queuert_job_blocker WHERE job_id = :id AND NOT closed

-- name: count_type
-- Counts the jobs of a type and status.
SELECT count(*) FROM queuert_job WHERE type = :type AND status = :status

-- name: count_type_up_to
-- How many jobs of a type have a status, as far as they are counted.
SELECT count(*) FROM (SELECT 1 FROM queuert_job WHERE type = :type AND status = :status LIMIT :limit)

-- name: count_ready_of_key
-- How many jobs of a type and limit key, or without one, are ready, as far as they are counted.
SELECT count(*) FROM (
    SELECT 1 FROM queuert_job WHERE type = :type AND status = 'ready' AND limit_key IS :key LIMIT :limit)

-- name: due_keys
-- The limit keys of the longest due scheduled jobs of a type.
SELECT limit_key FROM queuert_job WHERE type = :type AND status = 'scheduled' AND scheduled_at <= :now
ORDER BY scheduled_at LIMIT :limit

-- name: types
-- Reads all job types, with one index step for each.
WITH RECURSIVE known (type) AS (
    SELECT min(type) FROM queuert_job
    UNION ALL
    SELECT (SELECT min(job.type) FROM queuert_job AS job WHERE job.type > known.type) FROM known WHERE type IS NOT NULL
)
SELECT type FROM known WHERE type IS NOT NULL

-- name: types_of_chains
-- Reads the types of all chains, with one index step for each.
WITH RECURSIVE known (type) AS (
    SELECT min(type) FROM queuert_job WHERE chain_index = 0
    UNION ALL
    SELECT (SELECT min(job.type) FROM queuert_job AS job WHERE chain_index = 0 AND job.type > known.type)
    FROM known WHERE type IS NOT NULL
)
SELECT type FROM known WHERE type IS NOT NULL

-- name: count_attribute
-- Counts the chains that have an attribute, up to a limit.
SELECT count(*) FROM (SELECT 1 FROM queuert_chain_attribute WHERE name = :name AND value = :value LIMIT :limit)

-- name: place_of_job
-- Reads what the place of a job among the ready ones of its type depends on.
SELECT type, limit_key, attempt - uncounted - lease_expirations - priority, scheduled_at, rowid
FROM queuert_job WHERE id = :id

-- name: held_of_type
-- Some running jobs of a type, and who holds them.
SELECT id, holder FROM queuert_job WHERE type = :type AND status = 'running' LIMIT :limit

-- name: held_of_key
-- Some running jobs of a type and limit key, and who holds them.
SELECT id, holder FROM queuert_job WHERE type = :type AND status = 'running' AND limit_key = :key LIMIT :limit

-- name: count_ahead
-- Counts the ready jobs of a type that come before a place, up to a limit.
SELECT count(*) FROM (
    SELECT 1 FROM queuert_job
    WHERE type = :type AND status = 'ready'
        AND (attempt - uncounted - lease_expirations - priority, scheduled_at, rowid) < (:rank, :scheduled_at, :place)
    LIMIT :limit)

-- name: count_ahead_of_key
-- Counts the ready jobs of a type and limit key that come before a place, up to a limit.
SELECT count(*) FROM (
    SELECT 1 FROM queuert_job
    WHERE type = :type AND status = 'ready' AND limit_key IS :key
        AND (attempt - uncounted - lease_expirations - priority, scheduled_at, rowid) < (:rank, :scheduled_at, :place)
    LIMIT :limit)

-- name: chain_before
-- Reads the chain of a key that another one waits for: the one that goes first; or, if it is the first itself, another
-- one that has begun and goes on.
SELECT id FROM (
    SELECT * FROM (
        SELECT id FROM queuert_job WHERE type = :type AND limit_key = :key AND chain_status = 'open'
        ORDER BY (attempt = 0 AND status <> 'continued'), created_at LIMIT 1)
    UNION ALL
    SELECT * FROM (
        SELECT id FROM queuert_job
        WHERE type = :type AND limit_key = :key AND chain_status = 'open' AND (attempt = 0 AND status <> 'continued') = 0
            AND status IN ('running', 'continued')
        ORDER BY created_at LIMIT 1)
) AS found
WHERE id <> :id AND EXISTS (
    SELECT 1 FROM queuert_job WHERE id = :id AND chain_status = 'open' AND status <> 'running')
LIMIT 1

-- name: newest_starts
-- Reads when the newest attempts of a type and limit key began, since a time, up to a limit.
SELECT started_at FROM queuert_limit_start WHERE type = :type AND limit_key IS :key AND started_at > :since
ORDER BY started_at DESC LIMIT :limit
