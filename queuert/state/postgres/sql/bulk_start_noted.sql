-- bulk_start for a type whose log has all events. Where it has not, the rows need not come back to be noted, which is a
-- tenth of what the statement costs.
WITH new AS (
{insert}
    RETURNING id, status, scheduled_at
),
noted AS (
    INSERT INTO {schema}.job_event (kind, status, chain_index, type, chain_type, attempt, job_ids, scheduled_ats)
    SELECT 'created', status, 0, %(type)s, %(type)s, 0, array_agg(id), array_agg(scheduled_at)
    FROM (SELECT *, row_number() OVER () AS place FROM new) AS event
    GROUP BY place / {events_a_row}, status ORDER BY min(place)
)
SELECT count(*) FROM new
