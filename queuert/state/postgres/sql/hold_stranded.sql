-- Lock blocked jobs, the oldest first; what others have locked is passed over.
SELECT id FROM {schema}.job
WHERE id = ANY (%(ids)s::text[]) AND status = 'blocked'
ORDER BY created_at, id FOR NO KEY UPDATE SKIP LOCKED
