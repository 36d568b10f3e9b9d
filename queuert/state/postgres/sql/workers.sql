-- name: record_heartbeat
-- Note that a worker is alive. It changes no indexed column, so that a row that is there gets its next version beside it.
-- Says whether there are workers whose time is over: these go in a statement of their own, so that none ever holds one row of
-- this table and waits for another.
INSERT INTO {schema}.worker AS beating
    (id, name, host, pid, version, job_types, concurrency, running, state, started_at, seen_at, expires_at)
SELECT %(id)s::text, %(name)s::text, %(host)s::text, %(pid)s::bigint, %(version)s::text, %(job_types)s::text[],
    %(concurrency)s::integer, %(running)s::integer, %(state)s::text,
    clock.now - %(uptime)s::float8 * interval '1 second', clock.now, clock.now + %(ttl)s::float8 * interval '1 second'
FROM (SELECT clock_timestamp() AS now) AS clock
ON CONFLICT (id) DO UPDATE
SET name = excluded.name, host = excluded.host, pid = excluded.pid, version = excluded.version,
    job_types = excluded.job_types, concurrency = excluded.concurrency, running = excluded.running,
    state = excluded.state, seen_at = excluded.seen_at, expires_at = excluded.expires_at
RETURNING EXISTS (SELECT FROM {schema}.worker AS other WHERE other.expires_at <= clock_timestamp() AND other.id <> beating.id)

-- name: delete_stale_workers
-- Forget workers whose time is over. One that is beating just now, or that somebody else sweeps, is passed over.
DELETE FROM {schema}.worker
WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.worker WHERE expires_at <= clock_timestamp() ORDER BY id FOR UPDATE SKIP LOCKED
))
RETURNING id

-- name: remove_worker
-- Forget a worker that has stopped.
DELETE FROM {schema}.worker WHERE id = %(id)s::text
RETURNING id

-- name: list_workers
-- The workers that told of themselves not too long ago. There are as many rows as workers, so none is looked for by an index.
SELECT id, name, host, pid, version, job_types, concurrency, running, state, started_at, seen_at
FROM {schema}.worker WHERE expires_at > clock_timestamp()
ORDER BY started_at, id
