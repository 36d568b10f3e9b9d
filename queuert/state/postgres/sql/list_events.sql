-- A page of the event log by transaction and number, newest first, and where the look ended if it did not reach the end of the
-- log: no more than `most` entries are looked at for one page, however few of them fit. `settled` leaves out what is not below
-- the horizon: the transactions there may still commit more, before what they have committed.
WITH looked_at AS MATERIALIZED (
    SELECT tx, seq, happened_at, kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at,
        started_at, worker, error
    FROM {schema}.job_event
    WHERE (tx, seq) > (%(low)s::xid8, %(low_seq)s::bigint)
        AND (tx, seq) < (%(high)s::xid8, %(high_seq)s::bigint)
        AND tx < CASE WHEN %(settled)s THEN pg_snapshot_xmin(pg_current_snapshot()) ELSE '18446744073709551615' END
    ORDER BY tx DESC, seq DESC LIMIT %(most)s
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
    SELECT tx::text, seq, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM looked_at
    ORDER BY looked_at.tx DESC, looked_at.seq DESC OFFSET %(most)s - 1 LIMIT 1
)
