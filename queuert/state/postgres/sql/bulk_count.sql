-- How the chains of a bulk write stand. It reads each of their first jobs, so ask with pauses.
SELECT count(*), count(*) FILTER (WHERE chain_status = 'completed'), count(*) FILTER (WHERE chain_status = 'failed'),
    count(*) FILTER (WHERE chain_status = 'cancelled')
FROM {schema}.job WHERE write_id = %(write_id)s
