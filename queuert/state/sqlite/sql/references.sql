-- The jobs that name a chain as a blocker.
SELECT job.id, job.chain_id, job.status
FROM queuert_job_blocker AS entry JOIN queuert_job AS job ON job.id = entry.job_id
WHERE blocker_chain_id = :id
