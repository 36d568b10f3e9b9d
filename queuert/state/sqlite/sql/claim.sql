-- Lease one job.
UPDATE queuert_job SET status = 'running', attempt = attempt + 1, started_at = :now, lease_expires_at = :expires,
    lease_token = :token, holder = :holder
WHERE id = :id
RETURNING id, type, chain_id, chain_type, chain_index, priority, attempt, uncounted, lease_expirations, blocker_count,
    has_dependents, input, created_at, scheduled_at, started_at, trace_context, result_ttl,
    limit_key
