-- One blocker of a job has closed.
UPDATE queuert_job SET open_blockers = open_blockers - 1, status = :status, scheduled_at = :scheduled_at WHERE id = :id
