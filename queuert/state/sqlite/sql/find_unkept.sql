-- Closed chains of a type and outcome, from a place on, the oldest start first, up to the last start that may not be kept: a
-- chain closes after it was started. Only those without an end of their own, and that are old or many enough, go.
SELECT id, created_at, expires_at IS NULL
    AND coalesce(chain_closed_at <= :cut OR (created_at, id) <= (:mark, :mark_id), 0)
FROM queuert_job
WHERE type = :type AND chain_status = :status AND chain_index = 0 AND (created_at, id) > (:low, :low_id)
    AND created_at <= :high
ORDER BY created_at, id LIMIT :limit
