-- A chain among the blockers of others.
DELETE FROM queuert_job_blocker WHERE blocker_chain_id = :id
