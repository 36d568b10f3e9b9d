-- name: adopt_day
-- Let all events of a day be those of one transaction. Within it they are in the order of their numbers.
WITH changed AS (
    UPDATE {schema}.job_event SET tx = %(tx)s::xid8
    WHERE happened_at >= %(day)s::date::timestamp AT TIME ZONE 'UTC'
        AND happened_at < (%(day)s::date + 1)::timestamp AT TIME ZONE 'UTC' AND tx <> %(tx)s::xid8
    RETURNING cardinality(job_ids) AS many
)
SELECT coalesce(sum(coalesce(many, 1)), 0)::bigint FROM changed

-- name: adopt_days
-- The days (UTC) of all events, and the highest number of an event. Reads all of the log.
SELECT (happened_at AT TIME ZONE 'UTC')::date, max(max(seq)) OVER () FROM {schema}.job_event GROUP BY 1 ORDER BY 1

-- name: adopt_jobs
-- Clear the numbers of transactions that this cluster has not given, in some blocks of the table. A closed chain without one
-- counts as closed long ago.
WITH changed AS (
    UPDATE {schema}.job SET completed_tx = NULL
    WHERE ctid >= ('(' || %(low)s::bigint || ',0)')::tid
        AND (%(high)s::bigint IS NULL OR ctid < ('(' || %(high)s::bigint || ',0)')::tid)
        AND completed_tx >= %(next)s::text::xid8
    RETURNING 1
)
SELECT count(*) FROM changed

-- name: adopt_look
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

-- name: adopt_note
-- The numbers are this cluster's from now on. What retention took it took by numbers that are no more.
UPDATE {schema}.event_log SET system = %(system)s::text, dropped_tx = CASE WHEN %(renumbered)s THEN '0' ELSE dropped_tx END
RETURNING system

-- name: adopt_numbers
-- Let events that are written from now on have higher numbers than those that are there: replication copies no sequences.
SELECT setval('{schema}.job_event_seq', %(least)s::bigint) FROM {schema}.job_event_seq WHERE last_value < %(least)s::bigint
