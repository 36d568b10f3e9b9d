-- Give back all that one claim took of a type.
UPDATE queuert_job SET status = 'ready', attempt = attempt - 1, lease_token = NULL, lease_expires_at = NULL
WHERE type = :type AND status = 'running' AND lease_token = :token
