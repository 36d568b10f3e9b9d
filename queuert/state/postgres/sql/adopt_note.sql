-- The numbers are this cluster's from now on. What retention took it took by numbers that are no more.
UPDATE {schema}.event_log SET system = %(system)s::text, dropped_tx = CASE WHEN %(renumbered)s THEN '0' ELSE dropped_tx END
RETURNING system
