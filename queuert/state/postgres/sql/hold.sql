-- Hold a job and its chain for a transaction, the older one first: whoever would reap, cancel or close it waits or passes over.
-- The statements of its handler are planned as ever, not as ours (see connections.py).
SELECT id, lease_token::text, lease_expires_at IS NOT NULL, has_dependents,
    set_config('idle_in_transaction_session_timeout', %(idle)s, true), set_config('plan_cache_mode', 'auto', true),
    set_config('enable_seqscan', 'on', true),
    set_config('jit', coalesce(nullif(current_setting('queuert.jit', true), ''), current_setting('jit')), true)
FROM {schema}.job
WHERE id IN (%(root)s, %(id)s)
ORDER BY created_at, id FOR NO KEY UPDATE
