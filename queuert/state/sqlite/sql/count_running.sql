-- Running jobs of a type.
SELECT count(*) FROM queuert_job WHERE type = :type AND status = 'running'
