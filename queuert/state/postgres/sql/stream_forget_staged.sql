-- Remove what is staged for a sink up to a micro-batch: what was committed, and what attempts left that did not win.
DELETE FROM {schema}.stream_stage WHERE sink = %(sink)s AND batch <= %(batch)s
