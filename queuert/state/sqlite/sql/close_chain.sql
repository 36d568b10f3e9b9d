-- A chain ends, and expires when its TTL is over: the one of its ending, or that of its start.
UPDATE queuert_job SET chain_status = :status, chain_closed_at = :now,
    expires_at = :now + CAST(coalesce(:ttl, result_ttl) * 1000000 AS INTEGER)
WHERE id = :id
