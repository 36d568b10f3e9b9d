-- When the earliest lease of a type expires.
SELECT min(lease_expires_at) FROM queuert_job WHERE type = :type AND status = 'running'
