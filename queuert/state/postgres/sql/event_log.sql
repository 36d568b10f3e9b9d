-- name: log_owner
-- Reads the cluster that the transaction numbers of the log and the jobs belong to, and the cluster of this server.
SELECT event_log.system, system.system_identifier::text FROM {schema}.event_log, pg_control_system() AS system

-- name: read_log
-- Reads the state of the event log: the transaction below which all have ended, the next one, the newest of which
-- retention has dropped events, the cluster that the numbers belong to, and the cluster and timeline of this server.
-- The last column says whether the log has the event of the parameters: if so, a reader of another server may continue
-- after it.
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

-- name: read_log_end
-- Reads the state of the event log, and the position and time of the last event below the transaction below which all
-- have ended. If a row holds several events, it is the last of them; there may be none.
SELECT log.*, entry.tx::text, entry.seq + coalesce(cardinality(entry.job_ids), 1) - 1, entry.happened_at
FROM (
{include:read_log}
) AS log (horizon, next_tx, dropped, owner, system, timeline, standby, known)
LEFT JOIN LATERAL (
    SELECT event.tx, event.seq, event.job_ids, event.happened_at
    FROM {schema}.job_event AS event WHERE event.tx < log.horizon::xid8
    ORDER BY event.tx DESC, event.seq DESC LIMIT 1
) AS entry ON true

-- name: list_events
-- Reads a page of the event log by transaction and number, and where the scan ended if it did not reach the end of the
-- log: it reads at most `most` entries for one page, however few of them match. `settled` leaves out what is not below
-- the horizon: transactions there may still commit events before those that are visible.
--
-- It shows events as the view `event` does, but starts at the bounds: a row has the number of its first event, and the
-- 63 numbers above belong to it.
WITH looked_at AS MATERIALIZED (
    SELECT entry.tx, entry.seq + coalesce(one.place - 1, 0) AS seq, happened_at, kind, status,
        coalesce(one.job_id, entry.job_id) AS job_id, coalesce(one.chain_id, one.job_id, entry.chain_id) AS chain_id,
        chain_index, type, chain_type, attempt, coalesce(one.scheduled_at, entry.scheduled_at) AS scheduled_at,
        coalesce(one.started_at, entry.started_at) AS started_at, worker, error, progress
    FROM {schema}.job_event AS entry
    LEFT JOIN LATERAL unnest(entry.job_ids, entry.chain_ids, entry.scheduled_ats, entry.started_ats)
        WITH ORDINALITY AS one (job_id, chain_id, scheduled_at, started_at, place) ON true
    WHERE (entry.tx, entry.seq) > (%(low)s::xid8, %(low_seq)s::bigint - 64)
        AND (entry.tx, entry.seq) < (%(high)s::xid8, %(high_seq)s::bigint)
        AND (entry.tx, entry.seq + coalesce(one.place - 1, 0)) > (%(low)s::xid8, %(low_seq)s::bigint)
        AND (entry.tx, entry.seq + coalesce(one.place - 1, 0)) < (%(high)s::xid8, %(high_seq)s::bigint)
        AND entry.tx < CASE WHEN %(settled)s THEN pg_snapshot_xmin(pg_current_snapshot()) ELSE '18446744073709551615' END
    ORDER BY entry.tx {order}, entry.seq {order}, one.place {order} LIMIT %(most)s
)
(
    SELECT {event_record_columns}
    FROM looked_at
    WHERE (%(types)s::text[] IS NULL OR type = ANY (%(types)s::text[]))
        AND (%(kinds)s::text[] IS NULL OR kind = ANY (%(kinds)s::text[]))
        AND (%(chain)s::text IS NULL OR chain_id = %(chain)s::text)
    ORDER BY looked_at.tx {order}, looked_at.seq {order} LIMIT %(limit)s
)
UNION ALL
(
    SELECT {event_bound_columns}
    FROM looked_at
    ORDER BY looked_at.tx {order}, looked_at.seq {order} OFFSET %(most)s - 1 LIMIT 1
)

-- name: event_lag
-- Reads the seconds since the oldest event that is not below the horizon; 0 if there is none.
SELECT coalesce(extract(epoch FROM clock_timestamp() - (
    SELECT happened_at FROM {schema}.job_event AS entry
    WHERE entry.tx >= pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY entry.tx, entry.seq LIMIT 1
)), 0)::float8

-- name: event_levels
-- Reads the levels of the event log, first the default, and for how many days events are kept.
SELECT NULL AS type, level, keep_days FROM {schema}.event_log
UNION ALL
SELECT type, level, NULL FROM {schema}.event_level

-- name: set_event_default
-- Sets what holds for the whole log; null keeps the value.
UPDATE {schema}.event_log
SET level = coalesce(%(level)s::text, level), keep_days = coalesce(%(days)s::integer, keep_days)
RETURNING level

-- name: set_event_levels
-- Sets the levels of types, in one order.
INSERT INTO {schema}.event_level (type, level)
SELECT type, %(level)s FROM unnest(%(types)s::text[]) AS params (type)
ORDER BY type COLLATE "C"
ON CONFLICT (type) DO UPDATE SET level = excluded.level
RETURNING type

-- name: delete_event_levels
-- Deletes the levels of types, which it locks in the order in which they are written.
DELETE FROM {schema}.event_level
WHERE type IN (SELECT type FROM {schema}.event_level WHERE type = ANY (%(types)s::text[]) ORDER BY type FOR UPDATE)
RETURNING type

-- name: list_partitions
-- Reads the partitions of the event log, which of them are too old, and which days are missing. A new day begins later
-- than a statement may take.
WITH log AS (
    SELECT keep_days, (clock_timestamp() AT TIME ZONE 'UTC')::date AS today,
        ((clock_timestamp() + interval '10 minutes') AT TIME ZONE 'UTC')::date + 1 AS next
    FROM {schema}.event_log
),
part AS (
    SELECT relname::text AS name, pg_total_relation_size(oid) AS size, pg_relation_size(oid) > 0 AS filled,
        CASE WHEN relname ~ '^job_event_[0-9]{8}$' THEN to_date(right(relname, 8), 'YYYYMMDD') END AS day
    FROM pg_class
    WHERE oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = '{schema}.job_event'::regclass)
)
SELECT part.name, part.day, part.size, part.filled, coalesce(part.day < log.today - log.keep_days, false) AS old, false AS missing
FROM part LEFT JOIN log ON true
UNION ALL
SELECT NULL, log.next + ahead, 0, false, false, true
FROM log CROSS JOIN generate_series(0, 2) AS ahead
WHERE log.next + ahead NOT IN (SELECT day FROM part WHERE day IS NOT NULL)
ORDER BY 2

-- name: try_maintenance_lock
-- Takes the lock for the maintenance of the event log until the transaction ends, if nobody has it, and limits the
-- waiting for other locks.
SELECT pg_try_advisory_xact_lock(1363498580, hashtext('{schema} events')), set_config('lock_timeout', '100ms', true)

-- name: delete_events
-- Deletes old events in the default partition, oldest first, some at a time, and records the newest transaction.
-- Numbers that no transaction has had yet are ignored: readers would take all their events for lost, for good.
WITH gone AS (
    DELETE FROM {schema}.job_event_default
    WHERE ctid = ANY (ARRAY(
        SELECT old.tid
        FROM (
            SELECT ctid AS tid, happened_at FROM {schema}.job_event_default ORDER BY tx, seq LIMIT %(limit)s
        ) AS old
        WHERE happened_at < (clock_timestamp() AT TIME ZONE 'UTC')::date::timestamp AT TIME ZONE 'UTC'
            - (SELECT keep_days FROM {schema}.event_log) * interval '1 day'
    ))
    RETURNING tx, seq
),
recorded AS (
    UPDATE {schema}.event_log SET dropped_tx = greatest(
        CASE WHEN dropped_tx < pg_snapshot_xmax(pg_current_snapshot()) THEN dropped_tx ELSE '0' END, newest.tx)
    FROM (
        SELECT tx FROM gone WHERE tx < pg_snapshot_xmax(pg_current_snapshot()) ORDER BY tx DESC LIMIT 1
    ) AS newest
)
SELECT seq FROM gone

-- name: adopt_day
-- Gives all events of a day the number of one transaction. Within it they are in the order of their own numbers.
WITH changed AS (
    UPDATE {schema}.job_event SET tx = %(tx)s::xid8
    WHERE happened_at >= %(day)s::date::timestamp AT TIME ZONE 'UTC'
        AND happened_at < (%(day)s::date + 1)::timestamp AT TIME ZONE 'UTC' AND tx <> %(tx)s::xid8
    RETURNING cardinality(job_ids) AS many
)
SELECT coalesce(sum(coalesce(many, 1)), 0)::bigint FROM changed

-- name: adopt_days
-- Reads the days (UTC) of all events, and the highest number of an event. It reads the whole log.
SELECT (happened_at AT TIME ZONE 'UTC')::date, max(max(seq)) OVER () FROM {schema}.job_event GROUP BY 1 ORDER BY 1

-- name: adopt_jobs
-- Clears transaction numbers that this cluster has not assigned yet, in some blocks of the table. A closed chain
-- without a number counts as closed long ago.
WITH changed AS (
    UPDATE {schema}.job SET completed_tx = NULL
    WHERE ctid >= ('(' || %(low)s::bigint || ',0)')::tid
        AND (%(high)s::bigint IS NULL OR ctid < ('(' || %(high)s::bigint || ',0)')::tid)
        AND completed_tx >= %(next)s::text::xid8
    RETURNING 1
)
SELECT count(*) FROM changed

-- name: adopt_plan
-- Reads what an adoption would do: the owner of the numbers, the cluster of this server, its next number, how many
-- workers are alive, whether the log has numbers beyond that one, and estimates of the numbers of events and jobs.
SELECT event_log.system, system.system_identifier::text, pg_snapshot_xmax(pg_current_snapshot())::text,
    (SELECT count(*) FROM {schema}.worker WHERE expires_at > clock_timestamp()),
    event_log.dropped_tx >= pg_snapshot_xmax(pg_current_snapshot())
        OR EXISTS (SELECT FROM {schema}.job_event WHERE tx >= pg_snapshot_xmax(pg_current_snapshot())),
    (SELECT coalesce(sum(greatest(reltuples, 0)), 0)::bigint FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
     WHERE inhparent = '{schema}.job_event'::regclass),
    (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = '{schema}.job'::regclass),
    pg_relation_size('{schema}.job') / current_setting('block_size')::bigint
FROM {schema}.event_log, pg_control_system() AS system

-- name: adopt_dropped
-- Forgets up to which number retention has deleted events, before the first event gets another number. An adoption that
-- is repeated could not tell any more that this number was of the other cluster.
UPDATE {schema}.event_log SET dropped_tx = '0' RETURNING system

-- name: adopt_record
-- Records this cluster as the owner of the numbers.
UPDATE {schema}.event_log SET system = %(system)s::text RETURNING system

-- name: adopt_webhooks
-- Delivers events to webhooks from this cluster's next number on, where a later number was stored.
WITH changed AS (
    UPDATE {schema}.webhook_record
    SET body = jsonb_set(body::jsonb, ARRAY['from_tx'], %(next)s::text::jsonb)::text, tag = gen_random_uuid()::text,
        changed_at = clock_timestamp()
    WHERE kind = 'endpoint' AND (body::jsonb ->> 'from_tx')::numeric > %(next)s::text::numeric
    RETURNING 1
)
SELECT count(*) FROM changed

-- name: adopt_numbers
-- Makes new events have higher numbers than the existing ones: replication does not copy sequences.
SELECT setval('{schema}.job_event_seq', %(least)s::bigint) FROM {schema}.job_event_seq WHERE last_value < %(least)s::bigint
