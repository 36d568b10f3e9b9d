-- A job. A scheduled one whose time has come is shown as ready.
SELECT id, type, chain_id, chain_index,
    CASE WHEN status = 'scheduled' AND scheduled_at <= :now THEN 'ready' ELSE status END,
    priority, attempt, uncounted, lease_expirations, open_blockers, input, output, error, created_at, scheduled_at,
    started_at, finished_at, holder, lease_expires_at, continued_by, deduplication_key, limit_key, progress
FROM queuert_job WHERE id = :id
