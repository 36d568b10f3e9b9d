-- Set what holds for the whole log; null leaves it as it is.
UPDATE {schema}.event_log
SET level = coalesce(%(level)s::text, level), keep_days = coalesce(%(days)s::integer, keep_days)
RETURNING level
