-- Take the id of a bulk write, for the transaction that commits it. Who comes second waits here for the first one's end,
-- and gets no row if that was a commit: then it holds the row of that write, so that nobody forgets it before it is read.
INSERT INTO {schema}.bulk_write (write_id, type, rows, started, rejected, reject_files)
VALUES (%(write_id)s, %(type)s, %(rows)s, 0, %(rejected)s, %(reject_files)s)
ON CONFLICT (write_id) DO UPDATE SET type = excluded.type WHERE false
RETURNING write_id
