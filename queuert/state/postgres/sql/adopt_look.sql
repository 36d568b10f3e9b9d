-- What an adoption would have to do: whose numbers the database has, of which cluster this is, the first number that this
-- cluster has not given, how many workers live, whether the log goes beyond that number, and about how many events and jobs
-- there are.
SELECT event_log.system, system.system_identifier::text, pg_snapshot_xmax(pg_current_snapshot())::text,
    (SELECT count(*) FROM {schema}.worker WHERE expires_at > clock_timestamp()),
    event_log.dropped_tx >= pg_snapshot_xmax(pg_current_snapshot())
        OR EXISTS (SELECT FROM {schema}.job_event WHERE tx >= pg_snapshot_xmax(pg_current_snapshot())),
    (SELECT coalesce(sum(greatest(reltuples, 0)), 0)::bigint FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
     WHERE inhparent = '{schema}.job_event'::regclass),
    (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = '{schema}.job'::regclass),
    pg_relation_size('{schema}.job') / current_setting('block_size')::bigint
FROM {schema}.event_log, pg_control_system() AS system
