-- name: retention_cutoff
-- Reads the newest chain of a type and outcome that is beyond the number to keep.
SELECT created_at, id FROM queuert_job WHERE type = :type AND chain_status = :status AND chain_index = 0
ORDER BY created_at DESC, id DESC LIMIT 1 OFFSET :count

-- name: find_beyond_retention
-- Reads a page of closed chains of a type and outcome, the oldest start first, up to the last start that may be beyond
-- retention: a chain closes after it was started. Selected are those that never expire by a TTL, and are old or many
-- enough.
SELECT id, created_at, expires_at IS NULL
    AND coalesce(chain_closed_at <= :cut OR (created_at, id) <= (:mark, :mark_id), 0)
FROM queuert_job
WHERE type = :type AND chain_status = :status AND chain_index = 0 AND (created_at, id) > (:low, :low_id)
    AND created_at <= :high
ORDER BY created_at, id LIMIT :limit

-- name: update_result_ttl
-- Lets a closed chain expire at a time.
UPDATE queuert_job SET expires_at = :expires WHERE id = :id

-- name: delete_attribute
-- Deletes the attributes of a deleted chain from the index.
DELETE FROM queuert_chain_attribute
WHERE name = :name AND value = :value AND created_at = :created_at AND chain_id = :chain_id
