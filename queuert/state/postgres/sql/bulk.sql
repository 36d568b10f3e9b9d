-- name: bulk_blockers
-- Reads the chains that staged rows will wait for.
SELECT DISTINCT chain.id FROM {schema}.{stage} AS staged
CROSS JOIN LATERAL unnest(staged.blocked_by) AS chain (id)
WHERE staged.tag = ANY (%(tags)s::uuid[])

-- name: bulk_chain_ids
-- Reads the next page of the ids of a bulk write's chains.
SELECT id FROM {schema}.job WHERE write_id = %(write_id)s AND id > %(after)s ORDER BY id LIMIT %(limit)s

-- name: bulk_conflicts
-- Reads the ids of staged rows that exist as jobs; with `expired` only those of expired chains.
SELECT job.id FROM {schema}.{stage} AS staged
JOIN {schema}.job ON job.id = staged.id
WHERE staged.tag = ANY (%(tags)s::uuid[]) AND (NOT %(expired)s OR job.expires_at <= statement_timestamp())
LIMIT %(limit)s

-- name: bulk_copy
-- Loads staged rows.
COPY {schema}.{stage} ({columns}) FROM STDIN

-- name: bulk_count
-- Counts the chains of a bulk write by status. It reads each of their first jobs, so do not call it often.
SELECT count(*), count(*) FILTER (WHERE chain_status = 'completed'), count(*) FILTER (WHERE chain_status = 'failed'),
    count(*) FILTER (WHERE chain_status = 'cancelled')
FROM {schema}.job WHERE write_id = %(write_id)s

-- name: bulk_count_staged
-- Counts the rows that the winning attempts have staged. Staging is not logged: it is empty after a crash of the
-- server.
SELECT count(*) FROM {schema}.{stage} WHERE tag = ANY (%(tags)s::uuid[])

-- name: bulk_drop_duplicates
-- Deletes the staged rows that are duplicates of a chain, as in find_duplicates, or of the first row with the same key.
WITH ordered AS MATERIALIZED (
    SELECT staged.ctid AS tid, staged.deduplication_key AS key,
        row_number() OVER (PARTITION BY staged.deduplication_key ORDER BY part.first + staged.place) AS nth
    FROM {schema}.{stage} AS staged
    JOIN unnest(%(tags)s::uuid[], %(firsts)s::bigint[]) AS part (tag, first) ON part.tag = staged.tag
    WHERE staged.deduplication_key IS NOT NULL
),
since AS MATERIALIZED (
    SELECT coalesce(statement_timestamp() - %(window)s::float8 * interval '1 second', '-infinity') AS at
),
double AS MATERIALIZED (
    SELECT tid FROM ordered
    WHERE nth > 1
    UNION ALL
    SELECT tid FROM ordered
    CROSS JOIN LATERAL (
        (SELECT id FROM {schema}.job
         WHERE %(only_open)s AND job.type = %(type)s AND deduplication_key = ordered.key AND chain_status = 'open'
            AND created_at >= (SELECT at FROM since)
         ORDER BY type DESC, deduplication_key DESC, created_at DESC LIMIT 1)
        UNION ALL
        (SELECT id FROM {schema}.job
         WHERE NOT %(only_open)s AND job.type = %(type)s AND deduplication_key = ordered.key
            AND (expires_at IS NULL OR expires_at > statement_timestamp())
            AND created_at >= (SELECT at FROM since)
         ORDER BY type DESC, deduplication_key DESC, created_at DESC LIMIT 1)
    ) AS found
    WHERE nth = 1
)
DELETE FROM {schema}.{stage} AS staged USING double WHERE staged.ctid = double.tid

-- name: bulk_drop_existing
-- Deletes the staged rows whose ids exist, before another row is a duplicate of one of them, or waits for a chain.
DELETE FROM {schema}.{stage} AS staged
USING {schema}.job
WHERE staged.tag = ANY (%(tags)s::uuid[]) AND job.id = staged.id

-- name: bulk_drop_repeated
-- Deletes all but the first of the staged rows that have the same id, in the order of the DataFrame.
WITH repeated AS MATERIALIZED (
    SELECT staged.id, min(part.first + staged.place) AS kept
    FROM {schema}.{stage} AS staged
    JOIN unnest(%(tags)s::uuid[], %(firsts)s::bigint[]) AS part (tag, first) ON part.tag = staged.tag
    GROUP BY staged.id
    HAVING count(*) > 1
)
DELETE FROM {schema}.{stage} AS staged
USING repeated, unnest(%(tags)s::uuid[], %(firsts)s::bigint[]) AS part (tag, first)
WHERE staged.id = repeated.id AND part.tag = staged.tag AND part.first + staged.place > repeated.kept

-- name: bulk_drop_stage
-- Drops the staging table of a bulk write. It waits for tasks that still load it, as long as the lock timeout allows.
DROP TABLE IF EXISTS {schema}.{stage}

-- name: bulk_find_write
-- Reads the result of a bulk write, if it was committed.
SELECT type, rows, started, rejected, reject_files FROM {schema}.bulk_write WHERE write_id = %(write_id)s

-- name: bulk_delete_stage_record
-- Deletes the record of a staging table that is dropped in the same transaction.
DELETE FROM {schema}.bulk_stage WHERE name = %(name)s

-- name: bulk_delete_idle_record
-- Deletes the record of a staging table that is dropped in the same transaction, unless it was used after it was found
-- idle.
DELETE FROM {schema}.bulk_stage
WHERE name = %(name)s
    AND touched_at < clock_timestamp() - coalesce(%(seconds)s::float8, staging_ttl) * interval '1 second'
RETURNING name

-- name: bulk_delete_invalid_records
-- Deletes records with names that no bulk write makes. No table is dropped for them. Locked rows are skipped.
DELETE FROM {schema}.bulk_stage
WHERE name IN (
    SELECT name FROM {schema}.bulk_stage WHERE name !~ '^bulk_stage_[0-9a-f]{32}$' FOR UPDATE SKIP LOCKED
)

-- name: bulk_delete_old_writes
-- Deletes the records of bulk writes that were committed so many seconds ago and have no chain left. If such a write is
-- repeated, it is written again. Locked rows are skipped.
DELETE FROM {schema}.bulk_write
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {schema}.bulk_write
    WHERE committed_at < clock_timestamp() - %(seconds)s * interval '1 second'
        AND NOT EXISTS (SELECT FROM {schema}.job WHERE job.write_id = bulk_write.write_id)
    FOR UPDATE SKIP LOCKED
))
RETURNING write_id

-- name: bulk_lock_fence
-- Locks the job of an attempt, so that it keeps its lease until this transaction ends. Returns no row if the lease is
-- lost.
SELECT id FROM {schema}.job
WHERE id = %(job_id)s AND attempt = %(attempt)s AND lease_token = %(token)s::uuid AND status = 'running'
    AND (lease_expires_at > clock_timestamp() OR EXISTS (
        SELECT FROM {schema}.lease_extension AS extended
        WHERE extended.job_id = job.id AND extended.lease_token = job.lease_token
            AND extended.expires_at > clock_timestamp()))
FOR SHARE

-- name: bulk_idle_stages
-- Reads the staging tables that nothing has used for so many seconds, or, without a number, for as long as their own
-- writes have chosen. Tables that are being dropped are skipped.
SELECT name FROM {schema}.bulk_stage
WHERE touched_at < clock_timestamp() - coalesce(%(seconds)s::float8, staging_ttl) * interval '1 second'
ORDER BY touched_at FOR UPDATE SKIP LOCKED

-- name: bulk_event_level
-- Reads which events of a type are logged.
SELECT {event_level:%(type)s}

-- name: bulk_make_stage
-- Creates the staging table of a bulk write. Its driver does this before any task begins: a task could create it again
-- after it was dropped.
CREATE UNLOGGED TABLE {schema}.{stage} (LIKE {schema}.stream_stage)

-- name: bulk_record_stage
-- Records a staging table, so that maintenance finds it if its driver dies.
INSERT INTO {schema}.bulk_stage (name, write_id, staging_ttl) VALUES (%(name)s, %(write_id)s, %(staging_ttl)s)

-- name: bulk_record_started
-- Records how many chains a bulk write has started.
UPDATE {schema}.bulk_write SET started = %(started)s WHERE write_id = %(write_id)s

-- name: bulk_record_write
-- Takes the id of a bulk write for the transaction that commits it. A second caller waits for the first. If that
-- commits, the second gets no row and holds a lock on the first one's, so that nobody deletes it before it is read.
INSERT INTO {schema}.bulk_write (write_id, type, rows, started, rejected, reject_files)
VALUES (%(write_id)s, %(type)s, %(rows)s, 0, %(rejected)s, %(reject_files)s)
ON CONFLICT (write_id) DO UPDATE SET type = excluded.type WHERE false
RETURNING write_id

-- name: bulk_place
-- Reads what identifies this schema across clusters: the same at any address, and different after it was dropped and
-- created again.
SELECT system.system_identifier::text, database.oid::text,
    (SELECT relnamespace::text FROM pg_class WHERE oid = '{schema}.bulk_write'::regclass)
FROM pg_control_system() AS system, pg_database AS database
WHERE database.datname = current_database()

-- name: bulk_repeated
-- Reads the ids that several staged rows would start chains with: of rows with one deduplication key only the first
-- would.
SELECT id FROM {schema}.{stage}
WHERE tag = ANY (%(tags)s::uuid[])
GROUP BY id
HAVING count(*) FILTER (WHERE deduplication_key IS NULL) + count(DISTINCT deduplication_key) > 1
ORDER BY id
LIMIT %(limit)s

-- name: bulk_start
-- Starts a chain for each staged row of the winning attempts, as start_jobs does for a client. Rows are dated in the
-- order of the DataFrame, a microsecond apart, which is less than writing one takes: no time lies in the future.
INSERT INTO {schema}.job
    (id, type, chain_id, chain_type, chain_status, status, priority, created_at, scheduled_at, input,
     trace_context, deduplication_key, limit_key, write_id)
SELECT staged.id, %(type)s, staged.id, %(type)s, 'open',
    CASE WHEN staged.schedule_at > written.at THEN 'scheduled' ELSE 'ready' END,
    coalesce(staged.priority, 0), written.at, greatest(staged.schedule_at, written.at), staged.input,
    %(trace_context)s, staged.deduplication_key, staged.limit_key, %(write_id)s
FROM {schema}.{stage} AS staged
JOIN unnest(%(tags)s::uuid[], %(firsts)s::bigint[]) AS part (tag, first) ON part.tag = staged.tag
CROSS JOIN LATERAL (
    SELECT statement_timestamp() + (part.first + staged.place) * interval '1 microsecond' AS at
) AS written
{on_conflict}

-- name: bulk_start_recorded
-- Does bulk_start for a type of which all events are logged. For other types the rows need not be returned, which is a
-- tenth of the statement's cost.
WITH new AS (
{include:bulk_start}
    RETURNING id, status, scheduled_at
),
event AS (
    {insert_events}
    SELECT 'created', status, 0, %(type)s, %(type)s, 0, NULL, NULL, array_agg(id), NULL, array_agg(scheduled_at), NULL
    FROM (SELECT *, row_number() OVER () AS place FROM new) AS entry
    GROUP BY place / {events_a_row}, status ORDER BY min(place)
)
SELECT count(*) FROM new

-- name: bulk_lock_keys
-- Does lock_deduplication_keys for the staged rows of a bulk write.
INSERT INTO {schema}.deduplication (type, key)
SELECT %(type)s, key
FROM (
    SELECT DISTINCT deduplication_key AS key FROM {schema}.{stage}
    WHERE tag = ANY (%(tags)s::uuid[]) AND deduplication_key IS NOT NULL
) AS params
ORDER BY key COLLATE "C"
ON CONFLICT (type, key) DO UPDATE SET taken = deduplication.taken + 1

-- name: bulk_touch_stage
-- Records that a staging table is in use. Returns no row if it was dropped.
UPDATE {schema}.bulk_stage SET touched_at = clock_timestamp() WHERE name = %(name)s RETURNING name

-- name: bulk_jobs_with_blockers
-- Reads the staged rows that have blockers, and these chains: each once, in order.
SELECT staged.id, chain.ids FROM {schema}.{stage} AS staged
JOIN {schema}.job ON job.id = staged.id AND job.write_id = %(write_id)s
CROSS JOIN LATERAL (
    SELECT array_agg(once.id ORDER BY once.place) AS ids
    FROM (
        SELECT given.id, min(given.place) AS place
        FROM unnest(staged.blocked_by) WITH ORDINALITY AS given (id, place)
        GROUP BY given.id
    ) AS once
) AS chain
WHERE staged.tag = ANY (%(tags)s::uuid[]) AND cardinality(staged.blocked_by) > 0
ORDER BY staged.id

-- name: schema_revision
-- Reads the version of the schema.
SELECT version_num FROM {schema}.alembic_version

-- name: stream_find
-- Reads the last micro-batch that was committed for a sink, the query that wrote it, and where its rejected rows are.
SELECT query, batch, reject_files FROM {schema}.stream_write WHERE sink = %(sink)s

-- name: stream_delete_attempts
-- Deletes what some attempts have staged of a micro-batch, and not what others have under the same sink's name.
DELETE FROM {schema}.stream_stage WHERE sink = %(sink)s AND batch = %(batch)s AND tag = ANY (%(tags)s::uuid[])

-- name: stream_delete_staged
-- Deletes what is staged for a sink up to a micro-batch: committed rows, and those of attempts that did not win. Counts
-- the first: if none of them is missing now, none was when the jobs were made of them.
WITH deleted AS (DELETE FROM {schema}.stream_stage WHERE sink = %(sink)s AND batch <= %(batch)s RETURNING tag)
SELECT count(*) FROM deleted WHERE tag = ANY (%(tags)s::uuid[])

-- name: stream_record_batch
-- Takes the next micro-batch of a sink for the transaction that commits it. A second caller waits, and gets no row if
-- this batch or a later one was committed, or if the sink belongs to another query.
INSERT INTO {schema}.stream_write AS known (sink, query, batch, rows, rejected, reject_files)
VALUES (%(sink)s, %(query)s, %(batch)s, %(rows)s, %(rejected)s, %(reject_files)s)
ON CONFLICT (sink) DO UPDATE
SET batch = excluded.batch, rows = excluded.rows, rejected = excluded.rejected, reject_files = excluded.reject_files,
    committed_at = clock_timestamp()
WHERE known.query = excluded.query AND known.batch < excluded.batch
RETURNING batch

-- name: stream_delete_old
-- Deletes rows that were staged so many seconds ago, or, without a number, as long ago as their own queries have chosen,
-- which have not continued. Locked rows are skipped: they are being committed.
DELETE FROM {schema}.stream_stage
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {schema}.stream_stage
    WHERE staged_at < clock_timestamp() - coalesce(%(seconds)s::float8, staging_ttl) * interval '1 second'
    FOR UPDATE SKIP LOCKED
))
