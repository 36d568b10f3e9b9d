-- Note in which files the rejected rows of a sink's micro-batch are, in the place of an earlier batch's.
INSERT INTO {schema}.bulk_write AS known (write_id, type, rows, started, rejected, reject_files)
VALUES (%(write_id)s, %(type)s, 0, 0, %(rejected)s, %(reject_files)s)
ON CONFLICT (write_id) DO UPDATE
SET type = excluded.type, rejected = excluded.rejected, reject_files = excluded.reject_files,
    committed_at = excluded.committed_at
