-- The days (UTC) of all events, and the highest number of an event. Reads all of the log.
SELECT (happened_at AT TIME ZONE 'UTC')::date, max(max(seq)) OVER () FROM {schema}.job_event GROUP BY 1 ORDER BY 1
