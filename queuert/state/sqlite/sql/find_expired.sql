-- Chains that have expired, from a place on, those that did first at first.
SELECT id, expires_at FROM queuert_job WHERE expires_at <= :now AND (expires_at, id) > (:after, :after_id)
ORDER BY expires_at, id LIMIT :limit
