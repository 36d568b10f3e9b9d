-- Hold a job and its chain for a transaction, the older one first: whoever would reap, cancel or close it waits or passes over.
SELECT id, lease_token::text, lease_expires_at IS NOT NULL,
    set_config('idle_in_transaction_session_timeout', %(idle)s, true)
FROM {schema}.job
WHERE id IN (%(root)s, %(id)s)
ORDER BY created_at, id FOR NO KEY UPDATE
