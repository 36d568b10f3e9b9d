-- End a job over its holder's head.
UPDATE queuert_job SET status = :status, finished_at = :now, output = :output, error = :error,
    continued_by = :continued_by, lease_token = NULL, lease_expires_at = NULL
WHERE id = :id
