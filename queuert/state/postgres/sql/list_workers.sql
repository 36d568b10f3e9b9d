-- The workers that told of themselves not too long ago. There are as many rows as workers, so none is looked for by an index.
SELECT id, name, host, pid, version, job_types, concurrency, running, state, started_at, seen_at
FROM {schema}.worker WHERE expires_at > clock_timestamp()
ORDER BY started_at, id
