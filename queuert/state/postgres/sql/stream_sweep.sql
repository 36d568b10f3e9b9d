-- Remove rows that were staged so many seconds ago: those of queries that never came back.
DELETE FROM {schema}.stream_stage WHERE staged_at < clock_timestamp() - %(seconds)s * interval '1 second'
