-- The partitions of the event log, the day of each that is named after one, and their sizes in blocks.
SELECT relname, CASE WHEN relname ~ '^job_event_[0-9]{8}$' THEN to_date(right(relname, 8), 'YYYYMMDD') END,
    coalesce(pg_relation_size(oid), 0) / current_setting('block_size')::bigint
FROM pg_class
WHERE oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = '{schema}.job_event'::regclass)
ORDER BY relname
