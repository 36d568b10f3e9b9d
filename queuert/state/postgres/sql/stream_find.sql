-- The last micro-batch that was committed for a sink, and the query that wrote it.
SELECT query, batch FROM {schema}.stream_write WHERE sink = %(sink)s
