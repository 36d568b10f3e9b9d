-- A look at chains that have expired, those that did first at first. Of chains without an end the index knows nothing.
SELECT id, chain_closed_at, expires_at
FROM {schema}.job
WHERE expires_at <= statement_timestamp()
    AND (expires_at, id) > (coalesce(%(after)s::timestamptz, '-infinity'), %(after_id)s::text)
ORDER BY expires_at, id LIMIT %(limit)s
