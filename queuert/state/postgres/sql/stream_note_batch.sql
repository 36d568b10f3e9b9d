-- Take the next micro-batch of a sink, for the transaction that commits it. Who comes second waits here, and gets no row
-- if the batch, or a later one, was committed, or if the sink is another query's.
INSERT INTO {schema}.stream_write AS known (sink, query, batch, rows, rejected, reject_files)
VALUES (%(sink)s, %(query)s, %(batch)s, %(rows)s, %(rejected)s, %(reject_files)s)
ON CONFLICT (sink) DO UPDATE
SET batch = excluded.batch, rows = excluded.rows, rejected = excluded.rejected, reject_files = excluded.reject_files,
    committed_at = clock_timestamp()
WHERE known.query = excluded.query AND known.batch < excluded.batch
RETURNING batch
