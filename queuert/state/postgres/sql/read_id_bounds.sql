-- Ids that cut the jobs into parts of about the same size, from a sample of some hundred blocks.
SELECT percentile_disc(%(shares)s::float8[]) WITHIN GROUP (ORDER BY id)
FROM {schema}.job TABLESAMPLE SYSTEM (%(percent)s::float4)
