-- When the next of the other schedules of a type is due.
SELECT min(next_at) FROM queuert_schedule WHERE type = :type AND NOT paused AND next_at > :now
