-- Workers whose time is not over, the longest running first.
SELECT id, name, host, pid, version, job_types, concurrency, running, state, started_at, seen_at FROM queuert_worker
WHERE expires_at > :now ORDER BY started_at, id
