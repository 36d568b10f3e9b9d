-- name: insert_notification
-- Writes a notification for other processes.
INSERT INTO queuert_notification (sender, topic, keys) VALUES (:sender, :topic, :keys)

-- name: last_notification
-- Reads the id of the newest notification.
SELECT coalesce(max(id), 0) FROM queuert_notification

-- name: lock_for_writes
-- Takes the write lock of the database, and writes nothing: ids begin at 1.
DELETE FROM queuert_notification WHERE id = 0

-- name: read_notifications
-- Reads the notifications after one.
SELECT id, sender, topic, keys FROM queuert_notification WHERE id > :after ORDER BY id

-- name: delete_notifications
-- Deletes all notifications.
DELETE FROM queuert_notification

-- name: trim_notifications
-- Deletes all but the latest notifications, the oldest first, some at a time.
DELETE FROM queuert_notification WHERE id <= min(
    (SELECT max(id) FROM queuert_notification) - :kept, (SELECT min(id) FROM queuert_notification) + :most - 1)
