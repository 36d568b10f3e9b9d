-- What the jobs of a chain wait or waited for.
DELETE FROM queuert_job_blocker WHERE job_id IN (SELECT id FROM queuert_job WHERE chain_id = :id)
