-- The oldest event of the log. By the number of its transaction: a bare `tx` would be the text that is returned.
SELECT event.tx::text, event.seq, event.happened_at FROM {schema}.job_event AS event ORDER BY event.tx, event.seq LIMIT 1
