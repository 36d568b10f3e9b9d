-- How many scheduled jobs of a type are due, and since when the first of them is.
SELECT count(*), min(scheduled_at) FROM queuert_job
WHERE type = :type AND status = 'scheduled' AND scheduled_at <= :now
