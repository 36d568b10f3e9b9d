-- name: insert_hint
-- Something that others are to look at.
INSERT INTO queuert_hint (sender, topic, keys) VALUES (:sender, :topic, :keys)

-- name: last_hint
-- The newest hint.
SELECT coalesce(max(id), 0) FROM queuert_hint

-- name: read_hints
-- The hints after one.
SELECT id, sender, topic, keys FROM queuert_hint WHERE id > :after ORDER BY id

-- name: trim_hints
-- Only the latest hints are of use to anybody.
DELETE FROM queuert_hint WHERE id <= (SELECT max(id) FROM queuert_hint) - :kept
