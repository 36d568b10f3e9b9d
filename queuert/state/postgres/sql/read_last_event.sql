-- The last event of the log below a horizon. Of a row that holds many, the last of them.
SELECT event.tx::text, event.seq + coalesce(cardinality(event.job_ids), 1) - 1, event.happened_at
FROM {schema}.job_event AS event WHERE event.tx < %(horizon)s::xid8 ORDER BY event.tx DESC, event.seq DESC LIMIT 1
