-- Lease the ready jobs that were admitted, passing over what others hold, and note the starts of the types with a rate.
-- The best are taken whose inputs fit into `max_bytes`, one at least, as `claim` does; every row says whether all did.
WITH wanted AS MATERIALIZED (
    SELECT * FROM unnest(%(types)s::text[], %(leases)s::float8[]) AS w (type, lease_seconds)
),
locked AS MATERIALIZED (
    SELECT ctid AS tid, status, attempt - uncounted - lease_expirations - priority AS rank, scheduled_at,
        pg_column_size(input) * CASE WHEN pg_column_compression(input) IS NULL THEN 1 ELSE %(expansion)s::float8 END AS bytes
    FROM {schema}.job WHERE id = ANY (%(ids)s::text[]) FOR UPDATE SKIP LOCKED
),
fitting AS MATERIALIZED (
    SELECT tid, bytes, sum(bytes) OVER (ORDER BY rank, scheduled_at, tid ROWS UNBOUNDED PRECEDING) AS upto
    FROM locked
    WHERE status = 'ready'
),
claimed AS (
    UPDATE {schema}.job
    SET status = 'running',
        attempt = attempt + 1,
        started_at = clock_timestamp(),
        lease_expires_at = clock_timestamp() + wanted.lease_seconds * interval '1 second',
        lease_token = %(token)s::uuid,
        holder = %(holder)s
    FROM wanted
    WHERE job.ctid = ANY (ARRAY(SELECT tid FROM fitting WHERE upto <= %(max_bytes)s OR upto = bytes)) AND job.type = wanted.type
    RETURNING job.id, job.type, job.chain_id, job.chain_type, job.chain_index, job.priority, job.attempt,
        job.uncounted, job.lease_expirations, job.blocker_count, job.has_dependents, job.input::text,
        job.created_at, job.scheduled_at, job.started_at, wanted.lease_seconds, job.trace_context, job.result_ttl,
        CASE WHEN pg_column_compression(job.input) IS NOT NULL THEN pg_column_size(job.input) END AS packed, job.limit_key
),
noted AS (
    INSERT INTO {schema}.limit_start (started_at, type, limit_key)
    SELECT started_at, type, coalesce(limit_key, '') FROM claimed WHERE type = ANY (%(rated)s::text[])
),
logged AS (
    INSERT INTO {schema}.job_event
        (kind, status, chain_index, type, chain_type, attempt, worker, job_ids, chain_ids, scheduled_ats, started_ats)
    SELECT 'started', 'running', chain_index, type, chain_type, attempt, %(holder)s,
        array_agg(id), array_agg(chain_id) FILTER (WHERE chain_index > 0), array_agg(scheduled_at), array_agg(started_at)
    FROM (
        SELECT *, row_number() OVER () AS place FROM claimed
        WHERE coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = claimed.type),
                       (SELECT level FROM {schema}.event_log)) = 'all'
    ) AS event
    GROUP BY place / {events_a_row}, chain_index, type, chain_type, attempt ORDER BY min(place)
)
SELECT id, type, chain_id, chain_type, chain_index, priority, attempt, uncounted, lease_expirations, blocker_count,
    has_dependents, input, created_at, scheduled_at, started_at, lease_seconds, trace_context,
    result_ttl, packed, (SELECT max(upto) > %(max_bytes)s FROM fitting) AS cut
FROM claimed
