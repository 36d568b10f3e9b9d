-- The blockers of a job, closed or not as their chains are now.
UPDATE queuert_job_blocker SET closed = (SELECT chain_status <> 'open' FROM queuert_job WHERE id = blocker_chain_id)
WHERE job_id = :id
