-- name: read_to_lock_jobs
-- Reads no job. What rewrites the table waits until the transaction ends: VACUUM FULL, CLUSTER, some migrations. A role
-- that may read columns only could not use LOCK TABLE.
SELECT id FROM {schema}.job LIMIT 0

-- name: read_blocks
-- Reads the number of blocks of the table of jobs.
SELECT pg_relation_size('{schema}.job') / current_setting('block_size')::bigint

-- name: read_days
-- Reads the partitions of the event log, their days, and their sizes in blocks.
SELECT relname, CASE WHEN relname ~ '^job_event_[0-9]{8}$' THEN to_date(right(relname, 8), 'YYYYMMDD') END,
    coalesce(pg_relation_size(oid), 0) / current_setting('block_size')::bigint
FROM pg_class
WHERE oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = '{schema}.job_event'::regclass)
ORDER BY relname

-- name: read_first_event
-- Reads the oldest event of the log. The order is by the number of its transaction: a bare `tx` would be the text that
-- is returned.
SELECT event.tx::text, event.seq, event.happened_at FROM {schema}.job_event AS event ORDER BY event.tx, event.seq LIMIT 1

-- name: read_id_bounds
-- Reads ids that divide the jobs into parts of about the same size, from a sample of some hundred blocks.
SELECT percentile_disc(%(shares)s::float8[]) WITHIN GROUP (ORDER BY id)
FROM {schema}.job TABLESAMPLE SYSTEM (%(percent)s::float4)

-- name: read_last_event
-- Reads the last event of the log below a horizon. If a row holds several events, this is the last of them.
SELECT event.tx::text, event.seq + coalesce(cardinality(event.job_ids), 1) - 1, event.happened_at
FROM {schema}.job_event AS event WHERE event.tx < %(horizon)s::xid8 ORDER BY event.tx DESC, event.seq DESC LIMIT 1

-- name: read_nth_event
-- Reads the event that follows after so many events of the selected types, from a position of the log on and below a
-- horizon. Events of a row before the position are skipped.
SELECT event.tx::text, event.seq + coalesce(one.place - 1, 0), event.happened_at
FROM {schema}.job_event AS event
LEFT JOIN LATERAL generate_subscripts(event.job_ids, 1) AS one (place) ON true
WHERE (tx, seq) >= (%(start_tx)s::xid8, %(start_seq)s::bigint - 63) AND tx < %(horizon)s::xid8
    AND (tx, seq + coalesce(one.place - 1, 0)) >= (%(start_tx)s::xid8, %(start_seq)s::bigint)
    AND (%(type_any)s::text[] IS NULL OR type = ANY (%(type_any)s::text[]))
    AND (%(status_any)s::text[] IS NULL OR status = ANY (%(status_any)s::text[]))
    AND (%(kind_any)s::text[] IS NULL OR kind = ANY (%(kind_any)s::text[]))
ORDER BY event.tx, event.seq, one.place OFFSET %(skip)s LIMIT 1

-- name: history_dates
-- Reads the days (UTC) of the events of these transactions that happened before a time. It reads only these
-- transactions, in the order of the log.
SELECT DISTINCT (happened_at AT TIME ZONE 'UTC')::date
FROM {schema}.job_event
WHERE tx >= %(from_tx)s::xid8 AND tx < %(to_tx)s::xid8 AND happened_at < %(before)s::timestamptz
ORDER BY 1

-- name: history_facts
-- Reads the state at the beginning of a run of the archive: the transaction below which all have ended, the newest of
-- which retention has dropped events, the time, the first day of which no events were dropped, the database, its
-- timeline, and the owner of its numbers.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text, event_log.dropped_tx::text, clock_timestamp(),
    (clock_timestamp() AT TIME ZONE 'UTC')::date - event_log.keep_days,
    system.system_identifier::text, current_database()::text,
    greatest(checkpoint.timeline_id, recovery.min_recovery_end_timeline), event_log.system
FROM {schema}.event_log, pg_control_system() AS system, pg_control_checkpoint() AS checkpoint,
    pg_control_recovery() AS recovery

-- name: history_retained
-- Reads which of these chains still exist, and why they were not deleted. A chain with the same id that was started
-- later is another chain.
SELECT root.id,
    CASE
        WHEN root.chain_status = 'open' OR root.chain_closed_at IS DISTINCT FROM params.closed_at
            OR root.expires_at IS DISTINCT FROM params.expires_at THEN 'changed'
        WHEN EXISTS (
            SELECT FROM {schema}.job_blocker AS entry
            JOIN {schema}.job AS waiting ON waiting.id = entry.job_id
            WHERE entry.blocker_chain_id = root.id
                AND waiting.status IN ('blocked', 'scheduled', 'ready', 'running')) THEN 'waited_for'
        WHEN greatest(root.chain_closed_at, root.stale_at) >= %(closed_before)s::timestamptz THEN 'unread'
        ELSE 'busy'
    END
FROM unnest(%(ids)s::text[], %(created)s::timestamptz[], %(closed)s::timestamptz[], %(expires)s::timestamptz[])
    AS params (id, created_at, closed_at, expires_at)
CROSS JOIN LATERAL (
    SELECT id, chain_status, chain_closed_at, expires_at, stale_at FROM {schema}.job
    WHERE job.id = params.id AND chain_index = 0 AND job.created_at = params.created_at
    OFFSET 0
) AS root

-- name: history_lock
-- Takes the lock of one output until the transaction ends, if it is free. The transaction holds nothing else.
SELECT pg_try_advisory_xact_lock(hashtextextended(%(name)s::text, 7241900315))
