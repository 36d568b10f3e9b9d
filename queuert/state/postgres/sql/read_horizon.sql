-- The transaction below which all are over, the newest that retention has taken events of, and the cluster.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text, event_log.dropped_tx::text, system.system_identifier::text
FROM {schema}.event_log, pg_control_system() AS system
