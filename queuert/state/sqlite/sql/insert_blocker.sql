-- Let a job wait for a chain that it does not wait for yet.
INSERT INTO queuert_job_blocker (job_id, position, blocker_chain_id, closed) VALUES (:job_id, :position, :chain_id, :closed)
ON CONFLICT (blocker_chain_id, job_id) DO NOTHING
