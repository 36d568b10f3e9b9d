-- name: stream_find
-- The last micro-batch that was committed for a sink, the query that wrote it, and where its rejected rows are.
SELECT query, batch, reject_files FROM {schema}.stream_write WHERE sink = %(sink)s

-- name: stream_forget_attempts
-- Remove what some attempts have staged of a micro-batch: not what others have, were it under the same sink's name.
DELETE FROM {schema}.stream_stage WHERE sink = %(sink)s AND batch = %(batch)s AND tag = ANY (%(tags)s::uuid[])

-- name: stream_forget_staged
-- Remove what is staged for a sink up to a micro-batch: what was committed, and what attempts left that did not win.
DELETE FROM {schema}.stream_stage WHERE sink = %(sink)s AND batch <= %(batch)s

-- name: stream_record_batch
-- Take the next micro-batch of a sink, for the transaction that commits it. Who comes second waits here, and gets no row
-- if the batch, or a later one, was committed, or if the sink is another query's.
INSERT INTO {schema}.stream_write AS known (sink, query, batch, rows, rejected, reject_files)
VALUES (%(sink)s, %(query)s, %(batch)s, %(rows)s, %(rejected)s, %(reject_files)s)
ON CONFLICT (sink) DO UPDATE
SET batch = excluded.batch, rows = excluded.rows, rejected = excluded.rejected, reject_files = excluded.reject_files,
    committed_at = clock_timestamp()
WHERE known.query = excluded.query AND known.batch < excluded.batch
RETURNING batch

-- name: stream_sweep
-- Remove rows that were staged so many seconds ago: those of queries that never came back.
DELETE FROM {schema}.stream_stage WHERE staged_at < clock_timestamp() - %(seconds)s * interval '1 second'
