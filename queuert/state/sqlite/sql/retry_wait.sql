-- How many chains a blocked job waits for.
UPDATE queuert_job SET open_blockers = :open WHERE id = :job_id
