-- Let events that are written from now on have higher numbers than those that are there: replication copies no sequences.
SELECT setval('{schema}.job_event_seq', %(least)s::bigint) FROM {schema}.job_event_seq WHERE last_value < %(least)s::bigint
