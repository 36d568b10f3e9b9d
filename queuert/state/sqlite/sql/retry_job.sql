-- A job that ended badly gets all its attempts again.
UPDATE queuert_job SET status = :status, scheduled_at = :now, finished_at = NULL, uncounted = attempt, lease_expirations = 0,
    lease_token = NULL, open_blockers = :open
WHERE id = :id
