-- Scheduled jobs of a type that are due become ready, the longest due first: so limits need only look at ready ones.
UPDATE queuert_job SET status = 'ready' WHERE rowid IN (
    SELECT rowid FROM queuert_job WHERE type = :type AND status = 'scheduled' AND scheduled_at <= :now
    ORDER BY scheduled_at LIMIT :limit)
