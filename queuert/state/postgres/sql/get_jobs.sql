SELECT id, type, chain_id, chain_index,
    CASE WHEN status = 'scheduled' AND scheduled_at <= clock_timestamp() THEN 'ready' ELSE status END,
    priority, attempt, uncounted, lease_expirations, open_blockers, input::text, output::text, error::text,
    created_at, scheduled_at, started_at, finished_at, holder, lease_expires_at, continued_by,
    deduplication_key, limit_key, progress
FROM {schema}.job WHERE id = ANY (%(ids)s::text[])
