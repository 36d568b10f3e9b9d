-- How many jobs of a type have a status.
SELECT count(*) FROM queuert_job WHERE type = :type AND status = :status
