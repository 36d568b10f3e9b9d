-- The last micro-batch that was committed for a sink, the query that wrote it, and where its rejected rows are.
SELECT query, batch, reject_files FROM {schema}.stream_write WHERE sink = %(sink)s
