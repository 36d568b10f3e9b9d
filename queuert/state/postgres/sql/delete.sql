-- Delete jobs with their entries as dependents. The entries go in the same statement, since the foreign keys are checked
-- row by row when it ends, and would find a chain named by a job that goes a moment later.
WITH entries AS (
    DELETE FROM {schema}.job_blocker WHERE job_id = ANY (%(jobs)s::text[])
),
done AS (
    DELETE FROM {schema}.job WHERE id = ANY (%(jobs)s::text[])
    RETURNING *
),
noted AS (
    INSERT INTO {schema}.job_event
        (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, worker, error)
    SELECT 'deleted', status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at,
        NULL, NULL
    FROM done
    WHERE coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = done.type),
                   (SELECT level FROM {schema}.event_log)) <> 'off'
)
SELECT id, chain_id, status, type, deduplication_key,
    CASE WHEN attributes IS NOT NULL THEN created_at END, attributes::text
FROM done
