-- name: retention_cutoff
-- The newest chain of a type and outcome that is beyond those which are kept.
SELECT created_at, id FROM queuert_job WHERE type = :type AND chain_status = :status AND chain_index = 0
ORDER BY created_at DESC, id DESC LIMIT 1 OFFSET :count

-- name: find_beyond_retention
-- Closed chains of a type and outcome, from a place on, the oldest start first, up to the last start that may not be kept: a
-- chain closes after it was started. Only those without an end of their own, and that are old or many enough, go.
SELECT id, created_at, expires_at IS NULL
    AND coalesce(chain_closed_at <= :cut OR (created_at, id) <= (:mark, :mark_id), 0)
FROM queuert_job
WHERE type = :type AND chain_status = :status AND chain_index = 0 AND (created_at, id) > (:low, :low_id)
    AND created_at <= :high
ORDER BY created_at, id LIMIT :limit

-- name: update_result_ttl
-- Let a closed chain expire at a moment.
UPDATE queuert_job SET expires_at = :expires WHERE id = :id

-- name: delete_attribute
-- A chain is gone, and so is what it was found by.
DELETE FROM queuert_chain_attribute
WHERE name = :name AND value = :value AND created_at = :created_at AND chain_id = :chain_id
