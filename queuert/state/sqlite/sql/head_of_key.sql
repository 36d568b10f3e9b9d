-- The best ready jobs of a type and limit key, from a rank on. The index has their order.
SELECT id, attempt - uncounted - lease_expirations - priority AS rank, scheduled_at, rowid FROM queuert_job
WHERE type = :type AND status = 'ready' AND limit_key IS :key
    AND attempt - uncounted - lease_expirations - priority >= :first_rank
ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at, rowid LIMIT :limit
