-- A job waits for a chain, which was closed and is open, again.
UPDATE queuert_job_blocker SET closed = 0 WHERE blocker_chain_id = :id AND job_id = :job_id AND closed
