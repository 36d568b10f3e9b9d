-- Blocked jobs from a place on, and whether they have an open blocker.
SELECT id, type, scheduled_at,
    EXISTS (SELECT 1 FROM queuert_job_blocker AS entry JOIN queuert_job AS chain ON chain.id = entry.blocker_chain_id
            WHERE entry.job_id = job.id AND chain.chain_status = 'open')
FROM queuert_job AS job WHERE status = 'blocked' AND id > :cursor ORDER BY id LIMIT :limit
