-- What a run over history begins with: the transaction below which all are over, the newest that retention has taken events of,
-- the moment, the first day of which no events are taken, which database this is, on which timeline, and whose numbers it has.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text, event_log.dropped_tx::text, clock_timestamp(),
    (clock_timestamp() AT TIME ZONE 'UTC')::date - event_log.keep_days,
    system.system_identifier::text, current_database()::text,
    greatest(checkpoint.timeline_id, recovery.min_recovery_end_timeline), event_log.system
FROM {schema}.event_log, pg_control_system() AS system, pg_control_checkpoint() AS checkpoint,
    pg_control_recovery() AS recovery
