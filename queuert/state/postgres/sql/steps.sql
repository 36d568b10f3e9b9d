-- name: record_step
-- Records a step of a job, if the token holds it. The lock keeps the reaper and the next claim away until the step is
-- committed, so the next attempt sees it.
WITH held AS MATERIALIZED (
    SELECT id FROM {schema}.job
    WHERE id = %(id)s AND lease_token = %(token)s::uuid AND lease_expires_at IS NOT NULL
    FOR NO KEY UPDATE
)
INSERT INTO {schema}.job_step (job_id, number, name, attempt, result, wake_at)
SELECT held.id, %(number)s::int, %(name)s::text, %(attempt)s::int, %(result)s::jsonb,
    coalesce(%(moment)s::timestamptz, clock_timestamp() + %(delay)s::float8 * interval '1 second')
FROM held
RETURNING number, name, attempt, recorded_at, result::text, wake_at, {step_seconds_left}

-- name: get_steps
-- Reads the steps of a job.
SELECT number, name, attempt, recorded_at, result::text, wake_at, {step_seconds_left}
FROM {schema}.job_step WHERE job_id = %(id)s ORDER BY number
