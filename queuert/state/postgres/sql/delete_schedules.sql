-- Delete schedules, locked in the order in which they are written.
DELETE FROM {schema}.schedule
WHERE name IN (SELECT name FROM {schema}.schedule WHERE name = ANY (%(names)s::text[]) ORDER BY name FOR UPDATE)
RETURNING name
