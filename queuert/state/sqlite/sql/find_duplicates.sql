-- The chains of a deduplication key that have not expired, the newest first.
SELECT id, type, chain_index, status, chain_status, created_at FROM queuert_job
WHERE type = :type AND deduplication_key = :key AND created_at >= :since
    AND (expires_at IS NULL OR expires_at > :now)
ORDER BY created_at DESC LIMIT :limit
