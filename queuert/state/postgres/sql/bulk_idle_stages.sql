-- Staging tables that nobody has touched for so many seconds. One that is being dropped is passed over.
SELECT name FROM {schema}.bulk_stage
WHERE touched_at < clock_timestamp() - %(seconds)s * interval '1 second'
ORDER BY touched_at FOR UPDATE SKIP LOCKED
