-- The hints after one.
SELECT id, sender, topic, keys FROM queuert_hint WHERE id > :after ORDER BY id
