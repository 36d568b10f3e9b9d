-- name: record_heartbeat
-- Records that a worker is alive. It changes no indexed column, so the new version of the row is heap-only. It returns
-- whether there are workers whose heartbeat has expired: another statement deletes these, so that none holds one row of
-- this table and waits for another.
--
-- Limits are written only if they have changed: otherwise workers of one type would wait for each other's rows.
WITH reported AS MATERIALIZED (
    SELECT params.*
    FROM unnest(%(limited)s::text[], %(concurrencies)s::int[], %(per_keys)s::int[], %(rates)s::int[], %(windows)s::float8[])
        AS params (type, concurrency, per_key, rate_count, rate_seconds)
),
limits AS (
    INSERT INTO {schema}.type_limit (type, concurrency, per_key, rate_count, rate_seconds)
    SELECT reported.* FROM reported
    WHERE NOT EXISTS (
        SELECT FROM {schema}.type_limit AS known
        WHERE known.type = reported.type AND (known.concurrency, known.per_key, known.rate_count, known.rate_seconds)
            IS NOT DISTINCT FROM (reported.concurrency, reported.per_key, reported.rate_count, reported.rate_seconds)
    )
    ORDER BY reported.type COLLATE "C"
    ON CONFLICT (type) DO UPDATE SET concurrency = excluded.concurrency, per_key = excluded.per_key,
        rate_count = excluded.rate_count, rate_seconds = excluded.rate_seconds
),
unlimited AS (
    DELETE FROM {schema}.type_limit
    WHERE type = ANY (%(job_types)s::text[]) AND type <> ALL (ARRAY(SELECT reported.type FROM reported))
)
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
-- Deletes workers whose heartbeat has expired. Rows that are being renewed, or deleted by another worker, are passed
-- over.
DELETE FROM {schema}.worker
WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.worker WHERE expires_at <= clock_timestamp() ORDER BY id FOR UPDATE SKIP LOCKED
))
RETURNING id

-- name: remove_worker
-- Deletes a worker that has stopped.
DELETE FROM {schema}.worker WHERE id = %(id)s::text
RETURNING id

-- name: list_workers
-- Reads the workers whose heartbeat has not expired. There are as many rows as workers, so no index is needed.
SELECT id, name, host, pid, version, job_types, concurrency, running, state, started_at, seen_at
FROM {schema}.worker WHERE expires_at > clock_timestamp()
ORDER BY started_at, id
