-- Which of these chains have expired.
SELECT id, chain_closed_at, expires_at FROM {schema}.job
WHERE id = ANY (%(ids)s::text[]) AND expires_at <= clock_timestamp()
