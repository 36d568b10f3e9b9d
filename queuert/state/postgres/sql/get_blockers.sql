SELECT chain.id, chain.type, chain.status, chain.tail_type, CASE WHEN chain.status = 'completed' THEN chain.output::text END,
    chain.error::text
FROM {schema}.job_blocker JOIN {schema}.chain ON chain.id = blocker_chain_id
WHERE job_blocker.job_id = %(id)s
ORDER BY position
