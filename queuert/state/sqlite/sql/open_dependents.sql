-- The jobs that wait for a chain.
SELECT job.id, job.type, job.status, job.open_blockers, job.scheduled_at
FROM queuert_job_blocker AS entry JOIN queuert_job AS job ON job.id = entry.job_id
WHERE blocker_chain_id = :id AND NOT closed ORDER BY job.created_at, job.id
