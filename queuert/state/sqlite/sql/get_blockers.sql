-- The chains that a job waits or waited for, in their order.
SELECT chain.id, chain.type, chain.status, chain.tail_type, CASE WHEN chain.status = 'completed' THEN chain.output END,
    chain.error
FROM queuert_job_blocker AS entry JOIN queuert_chain AS chain ON chain.id = entry.blocker_chain_id
WHERE entry.job_id = :id ORDER BY position
