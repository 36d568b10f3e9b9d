-- A chain that jobs wait for has closed.
UPDATE queuert_job_blocker SET closed = 1 WHERE blocker_chain_id = :id AND NOT closed
