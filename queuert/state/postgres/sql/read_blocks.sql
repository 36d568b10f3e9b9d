-- How many blocks the table of jobs has.
SELECT pg_relation_size('{schema}.job') / current_setting('block_size')::bigint
