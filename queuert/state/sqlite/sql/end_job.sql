-- End an attempt. The token stays as evidence of who ended it.
UPDATE queuert_job SET status = :status, finished_at = :finished_at, scheduled_at = coalesce(:scheduled_at, scheduled_at),
    uncounted = uncounted + :uncounted, lease_expirations = lease_expirations + :crashed, output = :output,
    error = :error, continued_by = :continued_by, lease_expires_at = NULL
WHERE id = :id
