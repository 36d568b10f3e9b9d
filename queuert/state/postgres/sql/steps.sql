-- name: record_step
-- Records a step of a job, if the token holds it. The lock keeps the reaper and the next claim away until the step is
-- committed, so the next attempt sees it.
WITH held AS MATERIALIZED (
    SELECT id FROM {schema}.job
    WHERE id = %(id)s AND {holds_lease:%(token)s::uuid}
    FOR NO KEY UPDATE
)
INSERT INTO {schema}.job_step (job_id, number, name, attempt, result, wake_at)
SELECT held.id, %(number)s::int, %(name)s::text, %(attempt)s::int, %(result)s::jsonb,
    coalesce(%(moment)s::timestamptz, clock_timestamp() + %(delay)s::float8 * interval '1 second')
FROM held
RETURNING {step_columns}

-- name: begin_phase
-- Stores the progress of a job whose phase begins, if the token holds it, and writes the event.
WITH begun AS (
    UPDATE {schema}.job SET progress = %(progress)s::text
    WHERE id = %(id)s AND {holds_lease:%(token)s::uuid}
    RETURNING {event_columns}, holder, progress
),
logged AS (
    {insert_phase_event}
    SELECT 'phase_started', {event_columns}, holder, progress FROM begun WHERE {event_level:begun.type} = 'all'
)
SELECT clock_timestamp() FROM begun

-- name: record_phase
-- Records a phase as a step of its job, with the progress at its end, if the token holds the job, and writes the event.
WITH held AS (
    UPDATE {schema}.job SET progress = %(progress)s::text
    WHERE id = %(id)s AND {holds_lease:%(token)s::uuid}
    RETURNING {event_columns}, holder, progress
),
logged AS (
    {insert_phase_event}
    SELECT 'phase_completed', {event_columns}, holder, progress FROM held WHERE {event_level:held.type} = 'all'
)
INSERT INTO {schema}.job_step (job_id, number, name, attempt, result, started_at)
SELECT held.id, %(number)s::int, %(name)s::text, %(attempt)s::int, %(result)s::jsonb, %(started_at)s::timestamptz
FROM held
RETURNING {step_columns}

-- name: get_progress
-- Reads the progress of a job.
SELECT progress FROM {schema}.job WHERE id = %(id)s

-- name: get_steps
-- Reads the steps of a job.
SELECT {step_columns}
FROM {schema}.job_step WHERE job_id = %(id)s ORDER BY number

-- name: lock_waiting_job
-- Locks a job that is about to wait for an event, if the token holds it. Whoever sends an event locks the job as well, so
-- the statements after this one see each event that was sent before, and later ones find the wait.
SELECT chain_id FROM {schema}.job
WHERE id = %(id)s AND {holds_lease:%(token)s::uuid}
FOR NO KEY UPDATE

-- name: record_wait
-- Records a wait for an event, unless it is recorded. The job is locked.
INSERT INTO {schema}.job_step (job_id, number, name, attempt, event, wake_at)
VALUES (%(id)s, %(number)s, %(name)s, %(attempt)s, %(event)s, clock_timestamp() + %(timeout)s::float8 * interval '1 second')
ON CONFLICT (job_id, number) DO NOTHING
RETURNING number

-- name: answer_wait
-- Answers a recorded wait with the oldest event that was sent and not taken, or by its timeout, and returns the step. The
-- job is locked, so nobody else takes an event of its chain.
WITH step AS MATERIALIZED (
    SELECT job_id, number, wake_at FROM {schema}.job_step
    WHERE job_id = %(id)s AND number = %(number)s AND name = %(name)s AND event = %(event)s AND answered_at IS NULL
),
oldest AS MATERIALIZED (
    SELECT id, payload FROM {schema}.sent_event
    WHERE chain_id = %(chain)s AND name = %(event)s AND payload IS NOT NULL AND EXISTS (SELECT FROM step)
    ORDER BY number LIMIT 1
),
taken AS (
    UPDATE {schema}.sent_event SET payload = NULL
    WHERE chain_id = %(chain)s AND id = (SELECT oldest.id FROM oldest)
),
answered AS (
    UPDATE {schema}.job_step SET result = (SELECT oldest.payload FROM oldest), answered_at = clock_timestamp()
    FROM step
    WHERE job_step.job_id = step.job_id AND job_step.number = step.number
        AND (EXISTS (SELECT FROM oldest) OR step.wake_at <= clock_timestamp())
    RETURNING job_step.*
)
SELECT {step_columns} FROM answered
UNION ALL
SELECT {step_columns} FROM {schema}.job_step
WHERE job_id = %(id)s AND number = %(number)s AND name = %(name)s AND event = %(event)s
    AND NOT EXISTS (SELECT FROM answered)

-- name: find_sent_event
-- Finds an event that was sent to a chain, by its id, whether a job has taken it or not.
SELECT id FROM {schema}.sent_event WHERE chain_id = %(chain)s AND id = %(id)s

-- name: send_event
-- Keeps an event for a chain, unless its id is known or the chain keeps too much. The chain is locked. Returns whether
-- the id was known, whether the event was written, and whether the number is what was too much.
WITH kept AS MATERIALIZED (
    SELECT count(*) AS number, coalesce(sum(size), 0) AS bytes
    FROM {schema}.sent_event WHERE chain_id = %(chain)s AND payload IS NOT NULL
),
known AS MATERIALIZED (
    SELECT FROM {schema}.sent_event WHERE chain_id = %(chain)s AND id = %(id)s
),
written AS (
    INSERT INTO {schema}.sent_event (chain_id, id, name, size, payload)
    SELECT %(chain)s, %(id)s, %(name)s, %(size)s::int, %(payload)s::jsonb FROM kept
    WHERE NOT EXISTS (SELECT FROM known) AND number < %(most)s::int AND bytes + %(size)s::int <= %(most_bytes)s::int
    RETURNING id
),
-- A finish whose snapshot is older, as in REPEATABLE READ, must not overlook the event: it cannot write this row.
touched AS (
    UPDATE {schema}.job SET scheduled_at = scheduled_at WHERE id = %(tail)s AND EXISTS (SELECT FROM written)
)
SELECT EXISTS (SELECT FROM known), EXISTS (SELECT FROM written), number >= %(most)s::int FROM kept

-- name: wake_receivers
-- Makes jobs due that were snoozed until the end of a wait whose event is there. They are locked.
UPDATE {schema}.job
SET status = 'ready', scheduled_at = clock_timestamp()
WHERE id = ANY (%(ids)s::text[]) AND status = 'scheduled' AND EXISTS (
    SELECT FROM {schema}.job_step
    JOIN {schema}.sent_event
        ON sent_event.chain_id = job.chain_id AND sent_event.name = job_step.event AND sent_event.payload IS NOT NULL
    WHERE job_step.job_id = job.id AND job_step.event IS NOT NULL AND job_step.answered_at IS NULL
        AND job_step.wake_at = job.scheduled_at)
RETURNING id, type
