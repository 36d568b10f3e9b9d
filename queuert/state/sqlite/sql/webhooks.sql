-- name: get_webhook_records
-- Reads the records of a kind: all, or those of these ids.
SELECT kind, id, tag, body FROM queuert_webhook_record
WHERE kind = :kind AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids))) ORDER BY id

-- name: insert_webhook_record
-- Writes a record that does not exist.
INSERT OR IGNORE INTO queuert_webhook_record (kind, id, tag, body) VALUES (:kind, :id, :tag, :body)

-- name: update_webhook_record
-- Changes a record that nobody has changed since it was read.
UPDATE queuert_webhook_record SET tag = :tag, body = :body WHERE kind = :kind AND id = :id AND tag = :expected

-- name: delete_webhook_record
-- Deletes a record that nobody has changed since it was read.
DELETE FROM queuert_webhook_record WHERE kind = :kind AND id = :id AND tag = :expected

-- name: record_webhook_attempt
-- Writes an attempt at a delivery.
INSERT INTO queuert_webhook_attempt
    (endpoint_id, delivery_id, event_type, attempt, status, error, seconds, retry_in, response, at)
VALUES (:endpoint_id, :delivery_id, :event_type, :attempt, :status, :error, :seconds, :retry_in, :response, :at)

-- name: list_webhook_attempts
-- Reads a page of the attempts at deliveries to an endpoint, the newest first.
SELECT endpoint_id, delivery_id, event_type, attempt, status, error, seconds, retry_in, response, at, number
FROM queuert_webhook_attempt
WHERE endpoint_id = :endpoint AND number < coalesce(:before, 9223372036854775807) ORDER BY number DESC LIMIT :limit

-- name: prune_webhook_attempts
-- Deletes old attempts at deliveries. The log is in the order of its numbers.
DELETE FROM queuert_webhook_attempt WHERE at < :before AND number IN (
    SELECT number FROM queuert_webhook_attempt ORDER BY number LIMIT :limit)

-- name: attributes_of_chain
-- Reads the attributes of a chain, also of one that has expired and is not pruned yet.
SELECT attributes FROM queuert_job WHERE id = :id AND chain_index = 0
