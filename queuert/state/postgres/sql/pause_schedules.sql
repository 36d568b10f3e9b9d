-- Pause schedules, or let them go on, locked in the order in which they are written. The next tick stays what it was.
UPDATE {schema}.schedule
SET paused = %(paused)s, updated_at = clock_timestamp()
WHERE name IN (SELECT name FROM {schema}.schedule WHERE name = ANY (%(names)s::text[]) ORDER BY name FOR UPDATE)
RETURNING name
