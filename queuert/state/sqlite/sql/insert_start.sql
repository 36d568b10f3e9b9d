-- An attempt of a type with a rate began.
INSERT INTO queuert_limit_start (type, limit_key, started_at) VALUES (:type, :key, :now)
