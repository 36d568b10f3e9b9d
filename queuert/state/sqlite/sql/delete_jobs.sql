-- The jobs of a chain.
DELETE FROM queuert_job WHERE chain_id = :id
