-- The chains that jobs of a chain wait or waited for.
SELECT DISTINCT blocker_chain_id
FROM queuert_job AS job JOIN queuert_job_blocker AS entry ON entry.job_id = job.id
WHERE job.chain_id = :id
