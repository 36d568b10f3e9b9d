-- The oldest event of the log.
SELECT tx::text, seq FROM {schema}.job_event ORDER BY tx, seq LIMIT 1
