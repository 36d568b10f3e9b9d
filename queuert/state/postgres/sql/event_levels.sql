-- The levels of the event log, first that of all types without one of their own, and for how many days it is kept.
SELECT NULL AS type, level, keep_days FROM {schema}.event_log
UNION ALL
SELECT type, level, NULL FROM {schema}.event_level
