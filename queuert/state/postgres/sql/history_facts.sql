-- What a run over history begins with: the transaction below which all are over, the newest that retention has taken events of,
-- the moment, the first day of which no events are taken, and which database this is.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text, event_log.dropped_tx::text, clock_timestamp(),
    (clock_timestamp() AT TIME ZONE 'UTC')::date - event_log.keep_days,
    system.system_identifier::text, current_database()::text
FROM {schema}.event_log, pg_control_system() AS system
