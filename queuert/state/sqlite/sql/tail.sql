-- The last job of a chain, and how the chain stands.
SELECT tail.id, tail.type, tail.status, tail.chain_index, tail.attempt, tail.priority, root.chain_status,
    root.type
FROM queuert_job AS root
JOIN queuert_job AS tail ON tail.chain_id = root.id
WHERE root.id = :id AND root.chain_index = 0
ORDER BY tail.chain_index DESC LIMIT 1
