-- What of a type goes to the event log.
SELECT coalesce((SELECT level FROM {schema}.event_level WHERE type = %(type)s), (SELECT level FROM {schema}.event_log))
