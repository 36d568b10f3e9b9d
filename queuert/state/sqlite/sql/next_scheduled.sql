-- When the next scheduled job of a type is due.
SELECT min(scheduled_at) FROM queuert_job WHERE type = :type AND status = 'scheduled'
