-- The blockers of a job that are open.
SELECT count(*) FROM queuert_job_blocker WHERE job_id = :id AND NOT closed
