-- A staging table for one bulk write, made by its driver before any task begins: whoever else made it might make it anew
-- after it was dropped.
CREATE UNLOGGED TABLE {schema}.{stage} (LIKE {schema}.stream_stage)
