-- The first job of a chain, or another job of that id.
SELECT id, type, chain_index, status, chain_status, created_at, expires_at, result_ttl FROM queuert_job WHERE id = :id
