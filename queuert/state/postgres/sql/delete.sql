-- Delete jobs with their entries as dependents. The entries go in the same statement, since the foreign keys are checked
-- row by row when it ends, and would find a chain named by a job that goes a moment later.
WITH entries AS (
    DELETE FROM {schema}.job_blocker WHERE job_id = ANY (%(jobs)s::text[])
)
DELETE FROM {schema}.job WHERE id = ANY (%(jobs)s::text[])
RETURNING id, chain_id, status, type, deduplication_key,
    CASE WHEN attributes IS NOT NULL THEN created_at END, attributes::text
