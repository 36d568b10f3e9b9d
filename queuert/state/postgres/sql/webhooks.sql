-- name: get_webhook_records
-- Reads the records of a kind: all, or those of these ids.
SELECT kind, id, tag, body FROM {schema}.webhook_record
WHERE kind = %(kind)s::text AND (%(ids)s::text[] IS NULL OR id = ANY (%(ids)s::text[]))
ORDER BY id

-- name: insert_webhook_record
-- Writes a record that does not exist.
INSERT INTO {schema}.webhook_record (kind, id, tag, body)
VALUES (%(kind)s::text, %(id)s::text, %(tag)s::text, %(body)s::text)
ON CONFLICT DO NOTHING
RETURNING tag

-- name: update_webhook_record
-- Changes a record that nobody has changed since it was read.
UPDATE {schema}.webhook_record
SET tag = %(tag)s::text, body = %(body)s::text, changed_at = clock_timestamp()
WHERE kind = %(kind)s::text AND id = %(id)s::text AND tag = %(expected)s::text
RETURNING tag

-- name: delete_webhook_record
-- Deletes a record that nobody has changed since it was read.
DELETE FROM {schema}.webhook_record
WHERE kind = %(kind)s::text AND id = %(id)s::text AND tag = %(expected)s::text
RETURNING tag

-- name: record_webhook_attempts
-- Writes attempts at deliveries.
INSERT INTO {schema}.webhook_attempt
    (endpoint_id, delivery_id, event_type, attempt, status, error, seconds, retry_in, response)
SELECT * FROM unnest(
    %(endpoints)s::text[], %(deliveries)s::text[], %(events)s::text[], %(attempts)s::int[], %(statuses)s::int[],
    %(errors)s::text[], %(seconds)s::float8[], %(retries)s::float8[], %(responses)s::text[])
RETURNING number

-- name: list_webhook_attempts
-- Reads a page of the attempts at deliveries to an endpoint, the newest first.
SELECT endpoint_id, delivery_id, event_type, attempt, status, error, seconds, retry_in, response, at, number
FROM {schema}.webhook_attempt
WHERE endpoint_id = %(endpoint)s::text AND number < coalesce(%(before)s::bigint, 9223372036854775807)
ORDER BY number DESC LIMIT %(limit)s

-- name: prune_webhook_attempts
-- Deletes old attempts at deliveries. Those that another worker is deleting are passed over.
DELETE FROM {schema}.webhook_attempt
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {schema}.webhook_attempt
    WHERE at < clock_timestamp() - %(age)s::float8 * interval '1 second'
    ORDER BY at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
))
RETURNING number

-- name: get_chain_attributes
-- Reads the attributes of chains, also of those that have expired and are not pruned yet.
SELECT id, attributes::text FROM {schema}.job
WHERE id = ANY (%(ids)s::text[]) AND chain_index = 0
