-- The jobs of a chain.
SELECT id, status FROM queuert_job WHERE chain_id = :id
