-- The days (UTC) of which these transactions tell anything that happened before a moment. Read in the order of the log: only what
-- is new.
SELECT DISTINCT (happened_at AT TIME ZONE 'UTC')::date
FROM {schema}.job_event
WHERE tx >= %(from_tx)s::xid8 AND tx < %(to_tx)s::xid8 AND happened_at < %(before)s::timestamptz
ORDER BY 1
