-- Delete old events that have no day, the oldest first, some at a time, and note up to which transaction. Numbers that no
-- transaction has had yet are not believed: they would tell all readers that all is lost, for good.
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
noted AS (
    UPDATE {schema}.event_log SET dropped_tx = greatest(
        CASE WHEN dropped_tx < pg_snapshot_xmax(pg_current_snapshot()) THEN dropped_tx ELSE '0' END, newest.tx)
    FROM (
        SELECT tx FROM gone WHERE tx < pg_snapshot_xmax(pg_current_snapshot()) ORDER BY tx DESC LIMIT 1
    ) AS newest
)
SELECT seq FROM gone
