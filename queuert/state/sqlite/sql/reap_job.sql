-- An expired lease is a failed attempt.
UPDATE queuert_job SET status = :status, scheduled_at = coalesce(:scheduled_at, scheduled_at), finished_at = :finished_at,
    lease_expirations = lease_expirations + 1, lease_token = NULL, lease_expires_at = NULL, error = :error
WHERE id = :id
