-- The best ready jobs of a type and limit key. The index has their order.
SELECT id, attempt - uncounted - lease_expirations - priority AS rank, scheduled_at, rowid FROM queuert_job
WHERE type = :type AND status = 'ready' AND limit_key IS :key
ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at, rowid LIMIT :limit
