-- Move a schedule on, if its next tick still is this one.
UPDATE queuert_schedule SET next_at = :next_at, last_at = coalesce(:last_at, last_at)
WHERE name = :name AND next_at = :tick AND NOT paused
