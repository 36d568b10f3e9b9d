-- bulk_start for a type whose log has all events. Where it has not, the rows need not come back to be noted, which is a
-- tenth of what the statement costs.
WITH new AS (
{insert}
    RETURNING id, status, scheduled_at
),
noted AS (
    INSERT INTO {schema}.job_event (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at)
    SELECT 'created', new.status, new.id, new.id, 0, %(type)s, %(type)s, 0, new.scheduled_at
    FROM new
)
SELECT count(*) FROM new
