-- name: record_heartbeat
-- Records that a worker is alive. It changes no indexed column, so the new version of the row is heap-only. It returns
-- whether there are workers whose heartbeat has expired: another statement deletes these, so that none holds one row of
-- this table and waits for another. What the worker did is added to its rows of the minute.
--
-- Limits, and which types clients complete, are written only if they have changed: otherwise workers of one type would
-- wait for each other's rows.
WITH reported AS MATERIALIZED (
    SELECT params.*
    FROM unnest(%(limited)s::text[], %(concurrencies)s::int[], %(per_keys)s::int[], %(rates)s::int[], %(windows)s::float8[],
                %(fair)s::bool[], %(ordered)s::bool[])
        AS params (type, concurrency, per_key, rate_count, rate_seconds, fair, ordered)
),
limits AS (
    INSERT INTO {schema}.type_limit (type, concurrency, per_key, rate_count, rate_seconds, fair, ordered)
    SELECT reported.* FROM reported
    WHERE NOT EXISTS (
        SELECT FROM {schema}.type_limit AS known
        WHERE known.type = reported.type AND (known.concurrency, known.per_key, known.rate_count, known.rate_seconds, known.fair,
                known.ordered)
            IS NOT DISTINCT FROM (reported.concurrency, reported.per_key, reported.rate_count, reported.rate_seconds,
                reported.fair, reported.ordered)
    )
    ORDER BY reported.type COLLATE "C"
    ON CONFLICT (type) DO UPDATE SET concurrency = excluded.concurrency, per_key = excluded.per_key,
        rate_count = excluded.rate_count, rate_seconds = excluded.rate_seconds, fair = excluded.fair,
        ordered = excluded.ordered
),
unlimited AS (
    DELETE FROM {schema}.type_limit
    WHERE type = ANY (%(job_types)s::text[]) AND type <> ALL (ARRAY(SELECT reported.type FROM reported))
),
traits AS MATERIALIZED (
    SELECT params.* FROM unnest(%(traits)s::text[], %(by_clients)s::bool[], %(overdue)s::float8[], %(closing)s::bool[])
        AS params (type, completed_by_client, overdue_seconds, closes_with_parent)
),
-- What this heartbeat changes or deletes, locked in one order: workers of another version may write the same rows.
outdated AS MATERIALIZED (
    SELECT known.type, traits.type IS NULL AS gone
    FROM {schema}.type_trait AS known LEFT JOIN traits ON traits.type = known.type
    WHERE known.type = ANY (%(known_types)s::text[])
        AND (known.completed_by_client, known.overdue_seconds, known.closes_with_parent)
            IS DISTINCT FROM (traits.completed_by_client, traits.overdue_seconds, traits.closes_with_parent)
    ORDER BY known.type COLLATE "C" FOR UPDATE OF known
),
new_traits AS (
    INSERT INTO {schema}.type_trait (type, completed_by_client, overdue_seconds, closes_with_parent)
    SELECT traits.* FROM (SELECT count(*) FROM outdated) AS locked CROSS JOIN traits
    WHERE NOT EXISTS (
        SELECT FROM {schema}.type_trait AS known
        WHERE known.type = traits.type
            AND (known.completed_by_client, known.overdue_seconds, known.closes_with_parent)
                IS NOT DISTINCT FROM (traits.completed_by_client, traits.overdue_seconds, traits.closes_with_parent)
    )
    ORDER BY traits.type COLLATE "C"
    ON CONFLICT (type) DO UPDATE SET completed_by_client = excluded.completed_by_client,
        overdue_seconds = excluded.overdue_seconds, closes_with_parent = excluded.closes_with_parent
),
without_traits AS (
    DELETE FROM {schema}.type_trait USING outdated WHERE type_trait.type = outdated.type AND outdated.gone
),
{record_activity}
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
RETURNING EXISTS (SELECT FROM {schema}.worker AS other WHERE other.expires_at <= clock_timestamp() AND other.id <> beating.id),
    beating.seen_at

-- name: delete_stale_workers
-- Deletes workers whose heartbeat has expired. Rows that are being renewed, or deleted by another worker, are passed
-- over.
DELETE FROM {schema}.worker
WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.worker WHERE expires_at <= clock_timestamp() ORDER BY id FOR UPDATE SKIP LOCKED
))
RETURNING id

-- name: remove_worker
-- Deletes a worker that has stopped, and adds the last of what it did.
WITH {record_activity}
DELETE FROM {schema}.worker WHERE id = %(id)s::text
RETURNING id

-- name: list_workers
-- Reads the workers whose heartbeat has not expired. There are as many rows as workers, so no index is needed.
SELECT {worker_columns}
FROM {schema}.worker WHERE expires_at > clock_timestamp()
ORDER BY started_at, id

-- name: list_type_traits
-- Reads what workers know of job types, by name.
SELECT type, completed_by_client, overdue_seconds, closes_with_parent FROM {schema}.type_trait ORDER BY type COLLATE "C"

-- name: count_held
-- Counts the running jobs of workers. All running jobs are read: as many as all workers have slots. Batches of bulk
-- operations need none.
SELECT holder, count(*) FROM {schema}.job
WHERE status = 'running' AND holder = ANY (%(holders)s::text[]) AND type <> 'queuert.bulk_operation'
GROUP BY holder

-- name: get_activity
-- Reads what workers did, by minute or hour. Of each length it reads one range of the key: a minute and an hour are read
-- if they end after `since` and begin before `until`.
SELECT CASE WHEN %(by_hour)s THEN date_trunc('hour', found.begins_at, 'UTC') ELSE found.begins_at END AS begins,
    CASE WHEN %(by_hour)s THEN 3600 ELSE found.seconds END AS length,
    CASE WHEN %(per_type)s THEN found.type ELSE '' END AS of_type,
    CASE WHEN %(per_worker)s THEN nullif(found.worker, '') END AS of_worker, {sum_activity}
FROM (
    SELECT * FROM {schema}.activity
    WHERE seconds = 60 AND begins_at > %(since)s::timestamptz - interval '60 seconds'
        AND begins_at < coalesce(%(until)s::timestamptz, 'infinity')
    UNION ALL
    SELECT * FROM {schema}.activity
    WHERE seconds = 3600 AND begins_at > %(since)s::timestamptz - interval '3600 seconds'
        AND begins_at < coalesce(%(until)s::timestamptz, 'infinity')
) AS found
WHERE (%(types)s::text[] IS NULL OR found.type = ANY (%(types)s::text[]))
    AND (%(workers)s::text[] IS NULL OR found.worker = ANY (%(workers)s::text[]))
GROUP BY begins, length, of_type, of_worker
ORDER BY begins, of_type, of_worker NULLS FIRST

-- name: fold_activity
-- Adds minutes up to hours, without their workers, when the hour is over for long. Rows that another worker folds are
-- passed over. Returns the number of rows.
WITH folded AS (
    DELETE FROM {schema}.activity
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.activity
        WHERE seconds = 60 AND begins_at < (
            SELECT date_trunc('hour', clock_timestamp() - %(kept)s::float8 * interval '1 second', 'UTC')
        )
        ORDER BY begins_at, type, worker LIMIT %(limit)s::integer FOR UPDATE SKIP LOCKED
    ))
    RETURNING *
),
hours AS (
    INSERT INTO {schema}.activity AS known (seconds, begins_at, type, worker, report, {activity_counts}, wait, run)
    SELECT 3600, date_trunc('hour', folded.begins_at, 'UTC') AS hour, folded.type, '', 0, {sum_activity}
    FROM folded
    GROUP BY hour, folded.type
    ORDER BY hour, folded.type
    ON CONFLICT (seconds, begins_at, type, worker) DO UPDATE SET {add_activity}
)
SELECT count(*) FROM folded

-- name: drop_activity
-- Deletes hours that are too old.
DELETE FROM {schema}.activity
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {schema}.activity
    WHERE seconds = 3600 AND begins_at < (SELECT clock_timestamp() - %(kept)s::float8 * interval '1 second')
    ORDER BY begins_at, type, worker LIMIT %(limit)s::integer FOR UPDATE SKIP LOCKED
))
RETURNING begins_at
