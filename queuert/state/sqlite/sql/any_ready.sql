-- Whether a type has ready jobs.
SELECT 1 FROM queuert_job WHERE type = :type AND status = 'ready' LIMIT 1
