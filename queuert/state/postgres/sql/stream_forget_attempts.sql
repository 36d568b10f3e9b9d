-- Remove what some attempts have staged of a micro-batch: not what others have, were it under the same sink's name.
DELETE FROM {schema}.stream_stage WHERE sink = %(sink)s AND batch = %(batch)s AND tag = ANY (%(tags)s::uuid[])
