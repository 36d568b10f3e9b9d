-- name: retention_cutoff
-- Reads the newest chain of a type and outcome that is beyond the number to keep.
SELECT created_at, id FROM queuert_job WHERE type = :type AND chain_status = :status AND chain_index = 0
ORDER BY created_at DESC, id DESC LIMIT 1 OFFSET :count

-- name: find_beyond_retention
-- Reads a page of closed chains of a type and outcome, the oldest start first, up to the last start that may be beyond
-- retention: a chain closes after it was started. Selected are those that never expire by a TTL, and are old or many
-- enough: to delete, or to mark as stale.
SELECT id, created_at,
    CASE WHEN expires_at IS NOT NULL OR (chain_closed_at <= :cut OR (created_at, id) <= (:mark, :mark_id)) IS NOT TRUE THEN NULL
        WHEN :stale IS NOT NULL AND stale_at IS NULL THEN 'mark'
        WHEN max(chain_closed_at, coalesce(stale_at, 0)) >= :closed_before THEN NULL
        WHEN :stale IS NULL THEN 'delete'
        WHEN stale_at <= :stale THEN 'delete' END
FROM queuert_job
WHERE type = :type AND chain_status = :status AND chain_index = 0 AND (created_at, id) > (:low, :low_id)
    AND created_at <= :high
ORDER BY created_at, id LIMIT :limit

-- name: update_result_ttl
-- Lets a closed chain expire at a time.
UPDATE queuert_job SET expires_at = :expires WHERE id = :id

-- name: mark_stale
-- Marks a closed chain as stale.
UPDATE queuert_job SET stale_at = :now WHERE id = :id

-- name: is_stale
-- Reads whether a chain is stale.
SELECT stale_at IS NOT NULL FROM queuert_job WHERE id = :id

-- name: delete_attribute
-- Deletes the attributes of a deleted chain from the index.
DELETE FROM queuert_chain_attribute
WHERE name = :name AND value = :value AND created_at = :created_at AND chain_id = :chain_id
