-- The jobs that still wait for others, and for which a chain has closed.
SELECT job.id, job.open_blockers FROM queuert_job_blocker AS entry JOIN queuert_job AS job ON job.id = entry.job_id
WHERE blocker_chain_id = :id AND closed AND job.status = 'blocked'
