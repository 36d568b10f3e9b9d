-- Give back a job that was claimed and not started. The attempt never was.
UPDATE queuert_job SET status = 'ready', attempt = attempt - 1, lease_token = NULL, lease_expires_at = NULL
WHERE id = :id AND lease_token = :token AND lease_expires_at IS NOT NULL
