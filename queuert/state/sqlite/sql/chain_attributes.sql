-- What a chain is found by.
SELECT created_at, attributes FROM queuert_job WHERE id = :id AND attributes IS NOT NULL
