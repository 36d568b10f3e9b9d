-- name: insert_notification
-- Something that others are to look at.
INSERT INTO queuert_notification (sender, topic, keys) VALUES (:sender, :topic, :keys)

-- name: last_notification
-- The newest notification.
SELECT coalesce(max(id), 0) FROM queuert_notification

-- name: read_notifications
-- The notifications after one.
SELECT id, sender, topic, keys FROM queuert_notification WHERE id > :after ORDER BY id

-- name: trim_notifications
-- Only the latest notifications are of use to anybody.
DELETE FROM queuert_notification WHERE id <= (SELECT max(id) FROM queuert_notification) - :kept
