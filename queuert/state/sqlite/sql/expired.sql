-- Leases of a type that have expired, the longest expired first.
SELECT id, type, chain_id, attempt, uncounted, lease_expirations, holder FROM queuert_job
WHERE type = :type AND status = 'running' AND lease_expires_at <= :now ORDER BY lease_expires_at LIMIT :limit
