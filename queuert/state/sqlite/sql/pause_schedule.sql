-- Pause a schedule, or let it go on. The next tick stays what it was.
UPDATE queuert_schedule SET paused = :paused WHERE name = :name
