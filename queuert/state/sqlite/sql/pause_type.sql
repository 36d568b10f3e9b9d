-- Pause a job type. One that is paused keeps its time, and its reason unless there is another.
INSERT INTO queuert_paused_type (type, paused_at, reason) VALUES (:type, :now, :reason)
ON CONFLICT (type) DO UPDATE SET reason = coalesce(excluded.reason, reason)
