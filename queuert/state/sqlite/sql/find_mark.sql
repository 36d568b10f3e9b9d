-- The newest chain of a type and outcome that is beyond those which are kept.
SELECT created_at, id FROM queuert_job WHERE type = :type AND chain_status = :status AND chain_index = 0
ORDER BY created_at DESC, id DESC LIMIT 1 OFFSET :count
