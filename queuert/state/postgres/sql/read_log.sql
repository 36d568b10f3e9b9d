-- How the event log stands: the transaction below which all are over, the next one, the newest that retention has taken events
-- of, the cluster whose numbers the log has, and the cluster and the timeline that this server is of. The last column says
-- whether the log has an event: who has read it on another server may go on here.
--
-- A server that was promoted names its timeline in a checkpoint minutes later; until then its recovery tells.
SELECT pg_snapshot_xmin(now.snapshot)::text, pg_snapshot_xmax(now.snapshot)::text, event_log.dropped_tx::text, event_log.system,
    system.system_identifier::text, greatest(checkpoint.timeline_id, recovery.min_recovery_end_timeline),
    pg_is_in_recovery(),
    EXISTS (
        SELECT FROM {schema}.job_event AS entry
        WHERE (entry.tx, entry.seq) >= (%(tx)s::xid8, %(seq)s::bigint - 63)
            AND (entry.tx, entry.seq) <= (%(tx)s::xid8, %(seq)s::bigint) AND entry.happened_at = %(happened_at)s::timestamptz
    )
FROM {schema}.event_log, pg_control_system() AS system, pg_control_checkpoint() AS checkpoint,
    pg_control_recovery() AS recovery, pg_current_snapshot() AS now (snapshot)
