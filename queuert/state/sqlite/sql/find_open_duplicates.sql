-- The open chains of a deduplication key, the newest first.
SELECT id, type, chain_index, status, chain_status, created_at FROM queuert_job
WHERE type = :type AND deduplication_key = :key AND chain_status = 'open' AND created_at >= :since
ORDER BY created_at DESC LIMIT :limit
