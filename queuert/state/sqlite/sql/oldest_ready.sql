-- Since when the longest due of the ready jobs of a type is due.
SELECT min(scheduled_at) FROM queuert_job INDEXED BY queuert_job_ready WHERE type = :type AND status = 'ready'
