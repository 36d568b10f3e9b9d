-- Extend a lease that is still held.
UPDATE queuert_job SET lease_expires_at = :expires, progress = coalesce(:progress, progress)
WHERE id = :id AND lease_token = :token AND lease_expires_at IS NOT NULL
