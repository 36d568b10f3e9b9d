-- Move a schedule on, if its next tick still is the one that was seen. Who comes second waits for the row and finds it
-- moved.
UPDATE {schema}.schedule
SET next_at = %(next_at)s, last_at = coalesce(%(last_at)s, last_at)
WHERE name = %(name)s AND next_at = %(tick)s AND NOT paused
RETURNING name
