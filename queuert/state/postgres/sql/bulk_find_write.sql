-- What became of a bulk write, if it was committed.
SELECT type, rows, started, rejected, reject_files FROM {schema}.bulk_write WHERE write_id = %(write_id)s
