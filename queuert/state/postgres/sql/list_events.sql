-- A page of the event log by transaction and number, newest first, and where the look ended if it did not reach the end of the
-- log: no more than `most` entries are looked at for one page, however few of them fit. `settled` leaves out what is not below
-- the horizon: the transactions there may still commit more, before what they have committed.
--
-- As the view `event` shows them, but from the bounds: a row has the number of its first event, and 63 above it belong to it.
WITH looked_at AS MATERIALIZED (
    SELECT entry.tx, entry.seq + coalesce(one.place - 1, 0) AS seq, happened_at, kind, status,
        coalesce(one.job_id, entry.job_id) AS job_id, coalesce(one.chain_id, one.job_id, entry.chain_id) AS chain_id,
        chain_index, type, chain_type, attempt, coalesce(one.scheduled_at, entry.scheduled_at) AS scheduled_at,
        coalesce(one.started_at, entry.started_at) AS started_at, worker, error
    FROM {schema}.job_event AS entry
    LEFT JOIN LATERAL unnest(entry.job_ids, entry.chain_ids, entry.scheduled_ats, entry.started_ats)
        WITH ORDINALITY AS one (job_id, chain_id, scheduled_at, started_at, place) ON true
    WHERE (entry.tx, entry.seq) > (%(low)s::xid8, %(low_seq)s::bigint - 64)
        AND (entry.tx, entry.seq) < (%(high)s::xid8, %(high_seq)s::bigint)
        AND (entry.tx, entry.seq + coalesce(one.place - 1, 0)) > (%(low)s::xid8, %(low_seq)s::bigint)
        AND (entry.tx, entry.seq + coalesce(one.place - 1, 0)) < (%(high)s::xid8, %(high_seq)s::bigint)
        AND entry.tx < CASE WHEN %(settled)s THEN pg_snapshot_xmin(pg_current_snapshot()) ELSE '18446744073709551615' END
    ORDER BY entry.tx DESC, entry.seq DESC, one.place DESC LIMIT %(most)s
)
(
    SELECT tx::text, seq, happened_at, kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at,
        started_at, worker, error::text
    FROM looked_at
    WHERE (%(types)s::text[] IS NULL OR type = ANY (%(types)s::text[]))
        AND (%(kinds)s::text[] IS NULL OR kind = ANY (%(kinds)s::text[]))
        AND (%(chain)s::text IS NULL OR chain_id = %(chain)s::text)
    ORDER BY looked_at.tx DESC, looked_at.seq DESC LIMIT %(limit)s
)
UNION ALL
(
    SELECT tx::text, seq, happened_at, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM looked_at
    ORDER BY looked_at.tx DESC, looked_at.seq DESC OFFSET %(most)s - 1 LIMIT 1
)
