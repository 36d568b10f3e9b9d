-- The partitions of the event log, and what is to be done about them: which are too old, and which days are missing, of those that
-- lie in the future by more than a statement may take.
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
