-- Lock jobs, the oldest first, and say how each stands under the lock.
SELECT id, type, status FROM {schema}.job WHERE id = ANY (%(ids)s::text[]) ORDER BY created_at, id FOR NO KEY UPDATE
