-- A worker is alive. When it was started is what its first beat said.
INSERT INTO queuert_worker (id, name, host, pid, version, job_types, concurrency, running, state, started_at, seen_at,
    expires_at)
VALUES (:id, :name, :host, :pid, :version, :job_types, :concurrency, :running, :state, :started_at, :now, :expires)
ON CONFLICT (id) DO UPDATE SET name = excluded.name, host = excluded.host, pid = excluded.pid,
    version = excluded.version, job_types = excluded.job_types, concurrency = excluded.concurrency,
    running = excluded.running, state = excluded.state, seen_at = excluded.seen_at, expires_at = excluded.expires_at
