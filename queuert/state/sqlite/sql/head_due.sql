-- The longest due scheduled jobs of a type.
SELECT id, attempt - uncounted - lease_expirations - priority AS rank, scheduled_at, rowid FROM queuert_job
WHERE type = :type AND status = 'scheduled' AND scheduled_at <= :now ORDER BY scheduled_at, rowid LIMIT :limit
