-- name: read_blocks
-- How many blocks the table of jobs has.
SELECT pg_relation_size('{schema}.job') / current_setting('block_size')::bigint

-- name: read_days
-- The partitions of the event log, the day of each that is named after one, and their sizes in blocks.
SELECT relname, CASE WHEN relname ~ '^job_event_[0-9]{8}$' THEN to_date(right(relname, 8), 'YYYYMMDD') END,
    coalesce(pg_relation_size(oid), 0) / current_setting('block_size')::bigint
FROM pg_class
WHERE oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = '{schema}.job_event'::regclass)
ORDER BY relname

-- name: read_first_event
-- The oldest event of the log. By the number of its transaction: a bare `tx` would be the text that is returned.
SELECT event.tx::text, event.seq, event.happened_at FROM {schema}.job_event AS event ORDER BY event.tx, event.seq LIMIT 1

-- name: read_id_bounds
-- Ids that cut the jobs into parts of about the same size, from a sample of some hundred blocks.
SELECT percentile_disc(%(shares)s::float8[]) WITHIN GROUP (ORDER BY id)
FROM {schema}.job TABLESAMPLE SYSTEM (%(percent)s::float4)

-- name: read_last_event
-- The last event of the log below a horizon. Of a row that holds many, the last of them.
SELECT event.tx::text, event.seq + coalesce(cardinality(event.job_ids), 1) - 1, event.happened_at
FROM {schema}.job_event AS event WHERE event.tx < %(horizon)s::xid8 ORDER BY event.tx DESC, event.seq DESC LIMIT 1

-- name: read_nth_event
-- The event that comes after so many others of those that are asked for, from a place in the log on and below a horizon. Of a
-- row that holds many, those before the place are passed over.
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
-- The days (UTC) of which these transactions tell anything that happened before a moment. Read in the order of the log: only what
-- is new.
SELECT DISTINCT (happened_at AT TIME ZONE 'UTC')::date
FROM {schema}.job_event
WHERE tx >= %(from_tx)s::xid8 AND tx < %(to_tx)s::xid8 AND happened_at < %(before)s::timestamptz
ORDER BY 1

-- name: history_facts
-- What a run over history begins with: the transaction below which all are over, the newest that retention has taken events of,
-- the moment, the first day of which no events are taken, which database this is, on which timeline, and whose numbers it has.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text, event_log.dropped_tx::text, clock_timestamp(),
    (clock_timestamp() AT TIME ZONE 'UTC')::date - event_log.keep_days,
    system.system_identifier::text, current_database()::text,
    greatest(checkpoint.timeline_id, recovery.min_recovery_end_timeline), event_log.system
FROM {schema}.event_log, pg_control_system() AS system, pg_control_checkpoint() AS checkpoint,
    pg_control_recovery() AS recovery

-- name: history_retained
-- Which of these chains are there still, and why they were not deleted. One of the same id that was started later is another.
SELECT root.id,
    CASE
        WHEN root.chain_status = 'open' OR root.chain_closed_at IS DISTINCT FROM params.closed_at
            OR root.expires_at IS DISTINCT FROM params.expires_at THEN 'changed'
        WHEN EXISTS (
            SELECT FROM {schema}.job_blocker AS entry
            JOIN {schema}.job AS waiting ON waiting.id = entry.job_id
            WHERE entry.blocker_chain_id = root.id
                AND waiting.status IN ('blocked', 'scheduled', 'ready', 'running')) THEN 'waited_for'
        ELSE 'busy'
    END
FROM unnest(%(ids)s::text[], %(created)s::timestamptz[], %(closed)s::timestamptz[], %(expires)s::timestamptz[])
    AS params (id, created_at, closed_at, expires_at)
CROSS JOIN LATERAL (
    SELECT id, chain_status, chain_closed_at, expires_at FROM {schema}.job
    WHERE job.id = params.id AND chain_index = 0 AND job.created_at = params.created_at
    OFFSET 0
) AS root

-- name: history_lock
-- One at a time for each output; until the transaction ends, which holds nothing else.
SELECT pg_try_advisory_xact_lock(hashtextextended(%(name)s::text, 7241900315))
