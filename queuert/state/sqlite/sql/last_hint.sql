-- The newest hint.
SELECT coalesce(max(id), 0) FROM queuert_hint
