-- Write a job: the first of a chain, or a continuation, which is kept as long as the chain.
INSERT INTO queuert_job (id, type, chain_id, chain_type, chain_index, status, chain_status, priority, created_at,
    scheduled_at, open_blockers, blocker_count, input, trace_context, deduplication_key, limit_key, attributes, result_ttl)
VALUES (:id, :type, :chain_id, :chain_type, :chain_index, :status, :chain_status, :priority, :created_at,
    :scheduled_at, :open_blockers, :blocker_count, :input, :trace_context, :deduplication_key, :limit_key, :attributes,
    CASE WHEN :chain_index = 0 THEN :result_ttl ELSE (SELECT result_ttl FROM queuert_job WHERE id = :chain_id) END)
