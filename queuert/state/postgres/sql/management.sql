-- name: lock_chains
-- Locks chains by their first and their last job, the chains that new jobs are about to wait for, (`again`) the open
-- chains that the last jobs have as blockers, and the jobs that wait for chains which are about to close (`closing`),
-- oldest first. It returns each row but the latter as it is under the lock: if the last job was continued while this
-- waited, the caller looks for the last job again.
WITH tail AS MATERIALIZED (
    SELECT coalesce(last.id, params.id) AS id
    FROM unnest(%(ids)s::text[]) AS params (id)
    LEFT JOIN LATERAL (
        SELECT job.id FROM {schema}.job WHERE job.chain_id = params.id AND chain_index > 0
        ORDER BY chain_index DESC LIMIT 1
    ) AS last ON true
),
awaited AS MATERIALIZED (
    SELECT unnest(%(awaited)s::text[]) AS id
    UNION
    SELECT blocker_chain_id
    FROM tail JOIN {schema}.job_blocker ON job_id = tail.id
    WHERE %(again)s::bool AND (SELECT chain_status FROM {schema}.job AS chain WHERE chain.id = blocker_chain_id) = 'open'
),
concerned AS MATERIALIZED (
    SELECT id FROM tail UNION SELECT id FROM awaited UNION SELECT unnest(%(ids)s::text[])
),
locked AS MATERIALIZED (
    SELECT id, chain_id, chain_index, type, chain_type, chain_status, status, scheduled_at,
        coalesce(attempt_trace_context, trace_context) AS trace_context
    FROM {schema}.job
    WHERE id = ANY (ARRAY(
        SELECT id FROM concerned
        UNION
        SELECT entry.job_id
        FROM unnest(%(closing)s::text[]) AS about (id)
        CROSS JOIN LATERAL (
            SELECT job_id FROM {schema}.job_blocker WHERE blocker_chain_id = about.id AND NOT closed OFFSET 0
        ) AS entry))
    ORDER BY created_at, id FOR NO KEY UPDATE
),
marked AS (
    UPDATE {schema}.job SET has_dependents = true
    FROM locked
    WHERE job.id = locked.id AND locked.id IN (SELECT id FROM awaited) AND NOT job.has_dependents
)
SELECT {locked_columns}
FROM locked
WHERE id IN (SELECT id FROM concerned)

-- name: lock_jobs
-- Locks jobs, oldest first, and reads their status under the lock.
SELECT id, type, status FROM {schema}.job WHERE id = ANY (%(ids)s::text[]) ORDER BY created_at, id FOR NO KEY UPDATE

-- name: cancel_chains
-- Cancels the last jobs of chains, and the chains with them. All are locked and known to be open. Without its token a
-- running attempt cannot finish.
WITH cancelled AS (
    UPDATE {schema}.job
    SET status = 'cancelled',
        finished_at = clock_timestamp(),
        chain_status = CASE WHEN chain_index = 0 THEN 'cancelled' END,
        chain_closed_at = CASE WHEN chain_index = 0 THEN clock_timestamp() END,
        expires_at = CASE WHEN chain_index = 0 THEN clock_timestamp() + result_ttl * interval '1 second' END,
        lease_token = NULL,
        lease_expires_at = NULL,
        completed_tx = pg_current_xact_id(),
        error = jsonb_build_object('kind', 'cancel', 'message', %(reason)s::text)
    WHERE id = ANY (%(tails)s::text[])
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at, job.error, {chain_seconds} AS seconds
),
closed AS (
    UPDATE {schema}.job
    SET chain_status = 'cancelled', chain_closed_at = clock_timestamp(), completed_tx = pg_current_xact_id(),
        expires_at = clock_timestamp() + result_ttl * interval '1 second'
    FROM cancelled
    WHERE job.id = cancelled.chain_id AND cancelled.chain_index > 0
    RETURNING job.id, {chain_seconds} AS seconds
),
event AS (
    {insert_event}
    SELECT 'cancelled', {event_columns}, NULL, error
    FROM cancelled
    WHERE {event_level:cancelled.type} <> 'off'
)
SELECT chain_id, coalesce(cancelled.seconds, closed.seconds)
FROM cancelled LEFT JOIN closed ON closed.id = cancelled.chain_id

-- name: complete_chains
-- Completes the last jobs of chains for a client, and the chains with them, if all are open and have these last jobs. It
-- returns the chains as they were.
SELECT {completed_columns}
FROM {schema}.complete_chains(%(completions)s::json)

-- name: continue_chains
-- Completes the last jobs of chains for a client with a continuation. All are locked and known to be open. A blocked job
-- keeps its count of open blockers, which goes on to fall.
WITH params AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(continued)s::json) AS c (id text, next_id text, output jsonb)
),
following AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(continuations)s::json) AS n (
        id text, type text, priority int, delay float8, moment timestamptz, input jsonb, trace_context text, limit_key text)
),
finished AS (
    UPDATE {schema}.job
    SET status = 'continued',
        finished_at = clock_timestamp(),
        completed_tx = pg_current_xact_id(),
        output = params.output,
        error = NULL,
        continued_by = params.next_id,
        lease_token = NULL,
        lease_expires_at = NULL
    FROM params
    WHERE job.id = params.id
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at, job.continued_by, job.result_ttl
),
continued AS (
    INSERT INTO {schema}.job
        (id, type, chain_id, chain_type, chain_index, status, priority, scheduled_at, input, trace_context, limit_key,
         result_ttl)
    SELECT following.id, following.type, finished.chain_id, finished.chain_type, finished.chain_index + 1,
        CASE WHEN due.at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END,
        following.priority, due.at, coalesce(following.input, 'null'), following.trace_context, following.limit_key,
        finished.result_ttl
    FROM finished
    JOIN following ON following.id = finished.continued_by
    CROSS JOIN LATERAL (
        SELECT greatest(coalesce(following.moment, clock_timestamp() + following.delay * interval '1 second'),
                        clock_timestamp()) AS at
    ) AS due
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at
),
event AS (
    {insert_event}
    SELECT kind, {event_columns}, NULL, NULL
    FROM (
        SELECT status AS kind, status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at,
            'terminal' AS level
        FROM finished
        UNION ALL
        SELECT 'created', status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, 'all'
        FROM continued
    ) AS entry
    WHERE {event_level:entry.type} IN ('all', entry.level)
)
SELECT id FROM finished

-- name: retry_chains
-- Reopens closed chains: their last jobs are due now, and their earlier attempts do not count. The last error can still
-- be read. All are locked and known to be failed or cancelled. A later statement decides whether the jobs must wait for
-- blockers.
WITH reopened AS (
    UPDATE {schema}.job
    SET status = 'ready',
        scheduled_at = clock_timestamp(),
        finished_at = NULL,
        chain_status = CASE WHEN chain_index = 0 THEN 'open' END,
        chain_closed_at = NULL,
        expires_at = NULL,
        uncounted = attempt,
        lease_expirations = 0,
        open_blockers = 0,
        lease_token = NULL,
        completed_tx = NULL
    WHERE id = ANY (%(tails)s::text[])
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at, job.blocker_count
),
opened AS (
    UPDATE {schema}.job
    SET chain_status = 'open', expires_at = NULL, chain_closed_at = NULL, completed_tx = NULL
    FROM reopened
    WHERE job.id = reopened.chain_id AND reopened.chain_index > 0
),
event AS (
    {insert_event}
    SELECT 'retried_by_hand', {event_columns}, NULL, NULL
    FROM reopened
    WHERE {event_level:reopened.type} <> 'off'
)
SELECT id FROM reopened WHERE blocker_count > 0

-- name: change_input
-- Gives a job that waits, or is about to be retried, another input. It is locked.
UPDATE {schema}.job SET input = %(input)s::jsonb WHERE id = %(id)s RETURNING id

-- name: change_jobs
-- Gives waiting jobs another due time or priority. They are locked, and known to wait. A blocked job only keeps the
-- time, for when it is released. A job that is due by the new time, and was before, keeps its position.
WITH due AS MATERIALIZED (
    SELECT coalesce(%(at)s::timestamptz, clock_timestamp() + %(delay)s::float8 * interval '1 second') AS at,
        clock_timestamp() AS now
),
changed AS (
    UPDATE {schema}.job
    SET scheduled_at = CASE
            WHEN due.at IS NULL THEN scheduled_at
            WHEN due.at > due.now THEN due.at
            ELSE least(scheduled_at, due.now) END,
        status = CASE
            WHEN due.at IS NULL OR status = 'blocked' THEN status
            WHEN due.at > due.now THEN 'scheduled'
            ELSE 'ready' END,
        priority = coalesce(%(priority)s::int, priority)
    FROM due
    WHERE id = ANY (%(tails)s::text[]) AND status IN ('blocked', 'scheduled', 'ready')
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at
),
event AS (
    {insert_event}
    SELECT %(kind)s, {event_columns}, NULL, NULL
    FROM changed
    WHERE {event_level:changed.type} = 'all'
)
SELECT id FROM changed

-- name: reblock_dependents
-- Makes blocked jobs wait again for chains that were reopened. Jobs that have been released are left alone, since they
-- may have run. The reopened chains are locked, so none of them can close meanwhile.
WITH waiting AS MATERIALIZED (
    SELECT id FROM {schema}.job
    WHERE status = 'blocked' AND id IN (
        SELECT job_id FROM {schema}.job_blocker WHERE blocker_chain_id = ANY (%(chains)s::text[]) AND closed
    )
    ORDER BY created_at, id FOR NO KEY UPDATE
),
reopened AS (
    UPDATE {schema}.job_blocker SET closed = false
    FROM waiting
    WHERE job_id = waiting.id AND blocker_chain_id = ANY (%(chains)s::text[]) AND closed
    RETURNING job_id
),
counted AS (
    SELECT job_id, count(*) AS count FROM reopened GROUP BY job_id
)
UPDATE {schema}.job SET open_blockers = open_blockers + counted.count
FROM counted
WHERE job.id = counted.job_id
RETURNING job.id

-- name: reblock_job
-- Makes retried jobs wait for those of their blockers that are open, whether reopened or never closed. Only chains that
-- this transaction has locked are counted, so none of them can close meanwhile.
WITH reopened AS (
    UPDATE {schema}.job_blocker SET closed = false
    FROM {schema}.job AS chain
    WHERE job_blocker.job_id = ANY (%(tails)s::text[]) AND job_blocker.closed
        AND chain.id = blocker_chain_id AND chain.id = ANY (%(locked)s::text[]) AND chain.chain_status = 'open'
    RETURNING job_id
),
open AS (
    SELECT job_id, count(*) AS count
    FROM (
        SELECT job_id FROM {schema}.job_blocker WHERE job_id = ANY (%(tails)s::text[]) AND NOT closed
        UNION ALL
        SELECT job_id FROM reopened
    ) AS waiting
    GROUP BY job_id
),
waiting AS (
    UPDATE {schema}.job
    SET open_blockers = open.count, status = 'blocked'
    FROM open
    WHERE job.id = open.job_id
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at
),
event AS (
    {insert_event}
    SELECT 'blocked', {event_columns}, NULL, NULL
    FROM waiting
    WHERE {event_level:waiting.type} = 'all'
)
SELECT id FROM waiting

-- name: start_bulk_operation
-- Starts the chain of a bulk operation, with the rights of the function's owner.
SELECT chain_id, type, status, created_at FROM {schema}.start_bulk_operation(%(id)s::text, %(input)s::jsonb)

-- name: is_bulk_operation
-- Reads whether a chain was started by that function.
SELECT chain_id FROM {schema}.bulk_operation WHERE chain_id = %(id)s

-- name: bound_lock_waits
-- Sets the lock timeout of a transaction that a bulk operation writes in; without one it is as it was again.
SELECT {lock_timeout} FROM pg_settings WHERE name = 'lock_timeout'

-- name: take_turn_of_batches
-- Waits until no other batch of a bulk operation is under way, and keeps others waiting until the transaction ends.
SELECT pg_advisory_xact_lock(1363498580, hashtext('{schema} batches'))

-- name: held_chains
-- Reads the chains of which others hold a row that a change would lock, and locks those rows that nobody holds. It
-- never waits, and the writes that follow give up before anybody looks for a deadlock. It also sets their lock timeout;
-- the row that says so is there even if no chain is held.
WITH concerned AS MATERIALIZED (
    SELECT params.id AS chain, one.id
    FROM unnest(%(ids)s::text[]) AS params (id)
    LEFT JOIN LATERAL (
        SELECT job.id FROM {schema}.job WHERE job.chain_id = params.id AND chain_index > 0
        ORDER BY chain_index DESC LIMIT 1
    ) AS last ON true
    CROSS JOIN LATERAL (
        SELECT params.id
        UNION ALL
        SELECT last.id WHERE last.id IS NOT NULL
        UNION ALL
        SELECT blocker_chain_id FROM {schema}.job_blocker
        WHERE %(with_blockers)s::bool AND job_id = coalesce(last.id, params.id)
            AND (SELECT chain_status FROM {schema}.job AS blocker WHERE blocker.id = blocker_chain_id) = 'open'
        UNION ALL
        SELECT job_id FROM {schema}.job_blocker
        WHERE %(with_dependents)s::bool AND blocker_chain_id = params.id
            AND (NOT closed OR (SELECT status FROM {schema}.job AS waiting WHERE waiting.id = job_id) = 'blocked')
    ) AS one
),
locked AS MATERIALIZED (
    SELECT id FROM {schema}.job
    WHERE id = ANY (ARRAY(SELECT id FROM concerned))
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT held.chain, bound.timeout
FROM (SELECT {lock_timeout} AS timeout FROM pg_settings WHERE name = 'lock_timeout') AS bound
LEFT JOIN (SELECT DISTINCT chain FROM concerned WHERE id NOT IN (SELECT id FROM locked)) AS held ON true

-- name: held_for_delete
-- As held_chains, for a deletion, which locks all jobs of a chain. A foreign key of the user's own tables holds them, too.
WITH concerned AS MATERIALIZED (
    SELECT params.id AS chain, params.id FROM unnest(%(ids)s::text[]) AS params (id)
    UNION ALL
    SELECT params.id, following.id
    FROM unnest(%(ids)s::text[]) AS params (id)
    CROSS JOIN LATERAL (
        SELECT job.id FROM {schema}.job WHERE job.chain_id = params.id AND job.chain_index > 0 OFFSET 0
    ) AS following
),
locked AS MATERIALIZED (
    SELECT id FROM {schema}.job
    WHERE id = ANY (ARRAY(SELECT id FROM concerned))
    FOR UPDATE SKIP LOCKED
)
SELECT held.chain, bound.timeout
FROM (SELECT {lock_timeout} AS timeout FROM pg_settings WHERE name = 'lock_timeout') AS bound
LEFT JOIN (SELECT DISTINCT chain FROM concerned WHERE id NOT IN (SELECT id FROM locked)) AS held ON true

-- name: trigger_jobs
-- Makes scheduled jobs due. A job that is due already keeps its position among those that are.
WITH triggered AS (
    UPDATE {schema}.job
    SET status = 'ready', scheduled_at = least(scheduled_at, clock_timestamp())
    WHERE id = ANY (%(ids)s::text[]) AND status = 'scheduled'
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at
),
event AS (
    {insert_event}
    SELECT 'triggered', {event_columns}, NULL, NULL
    FROM triggered
    WHERE {event_level:triggered.type} = 'all'
)
SELECT id FROM triggered

-- name: lock_chains_for_delete
-- Locks all jobs of the chains that are to be deleted, oldest first; with `cascade` also those of the chains that these
-- jobs waited for, recursively. OFFSET 0 keeps the planner, which cannot know how few they are, from joining whole
-- tables. `id = chain_id` selects first jobs in a form that no partial index matches.
WITH RECURSIVE to_delete AS (
    SELECT id FROM {schema}.job WHERE id = ANY (%(ids)s::text[]) AND id = chain_id
    UNION
    SELECT blocker.id
    FROM to_delete
    CROSS JOIN LATERAL (
        SELECT blocker_chain_id AS id FROM {schema}.job_blocker
        WHERE job_id = ANY (ARRAY(
            SELECT to_delete.id
            UNION ALL
            SELECT job.id FROM {schema}.job WHERE job.chain_id = to_delete.id AND job.chain_index > 0))
        OFFSET 0
    ) AS blocker
    WHERE %(cascade)s::bool
),
member AS MATERIALIZED (
    SELECT id FROM to_delete
    UNION ALL
    SELECT following.id
    FROM to_delete
    CROSS JOIN LATERAL (
        SELECT job.id FROM {schema}.job WHERE job.chain_id = to_delete.id AND job.chain_index > 0 OFFSET 0
    ) AS following
)
SELECT id, chain_id FROM {schema}.job
WHERE id = ANY (ARRAY(SELECT id FROM member))
ORDER BY created_at, id FOR UPDATE

-- name: external_references
-- Reads the jobs of other chains that have one of these chains as a blocker: the first of each chain, and of the first
-- chains up to a hundred. The chains are locked, so no new one can appear.
SELECT chain, job_id
FROM (
    SELECT params.chain, reference.job_id,
        row_number() OVER (PARTITION BY params.chain ORDER BY reference.job_id) AS of_chain,
        row_number() OVER (ORDER BY params.chain, reference.job_id) AS of_all
    FROM unnest(%(chains)s::text[]) AS params (chain)
    CROSS JOIN LATERAL (
        SELECT job_id FROM {schema}.job_blocker JOIN {schema}.job ON job.id = job_id
        WHERE blocker_chain_id = params.chain AND job.chain_id <> ALL (%(chains)s::text[])
        ORDER BY job_id LIMIT 100
    ) AS reference
) AS found
WHERE of_chain = 1 OR of_all <= 100
ORDER BY chain, job_id

-- name: delete_chains
-- Deletes jobs and their entries as dependents. Both are in one statement because foreign keys are checked when it
-- ends.
WITH entries AS (
    DELETE FROM {schema}.job_blocker WHERE job_id = ANY (%(jobs)s::text[])
),
deleted AS (
    DELETE FROM {schema}.job WHERE id = ANY (%(jobs)s::text[])
    RETURNING *
),
event AS (
    {insert_event}
    SELECT 'deleted', {event_columns}, NULL, NULL
    FROM deleted
    WHERE {event_level:deleted.type} <> 'off'
)
SELECT {deleted_columns}
FROM deleted

-- name: delete_keys
-- Deletes the rows of deduplication keys that no chain has any more. A locked row stays: a chain with that key is being
-- started.
DELETE FROM {schema}.deduplication
WHERE ctid = ANY (ARRAY(
    SELECT slot.ctid
    FROM unnest(%(types)s::text[], %(keys)s::text[]) AS gone (type, key)
    JOIN {schema}.deduplication AS slot ON slot.type = gone.type AND slot.key = gone.key
    WHERE NOT EXISTS (
        SELECT FROM {schema}.job WHERE job.type = gone.type AND job.deduplication_key = gone.key)
    FOR UPDATE OF slot SKIP LOCKED
))
RETURNING key

-- name: delete_attributes
-- Deletes the attribute entries of chains that were deleted. Each is found by its whole key and is never updated, and
-- the caller has locked the chain's job.
DELETE FROM {schema}.chain_attribute
WHERE ctid = ANY (ARRAY(
    SELECT entry.tid
    FROM unnest(%(names)s::text[], %(values)s::text[], %(started)s::timestamptz[], %(ids)s::text[])
        AS gone (name, value, created_at, chain_id)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM {schema}.chain_attribute AS one
        WHERE one.name = gone.name AND one.value = gone.value
            AND one.created_at = gone.created_at AND one.chain_id = gone.chain_id
        OFFSET 0
    ) AS entry
))
RETURNING chain_id

-- name: find_stranded
-- Reads a page of blocked jobs, by id, and which of them are stranded: none of their open entries is of an open chain.
-- The search for an open one stops at the first. One snapshot shows a closed chain together with the release that it
-- caused.
SELECT page.id, waits.found IS NULL AS stranded
FROM (
    SELECT id FROM {schema}.job
    WHERE status = 'blocked' AND (%(cursor)s::text IS NULL OR id > %(cursor)s::text)
    ORDER BY id LIMIT %(limit)s
) AS page
LEFT JOIN LATERAL (
    SELECT true AS found FROM {schema}.job_blocker
    WHERE job_id = page.id AND NOT closed
        AND (SELECT chain_status FROM {schema}.job AS chain WHERE chain.id = blocker_chain_id) = 'open'
    LIMIT 1
) AS waits ON true
ORDER BY page.id

-- name: lock_stranded
-- Locks blocked jobs, oldest first, and skips those that others have locked.
SELECT id FROM {schema}.job
WHERE id = ANY (%(ids)s::text[]) AND status = 'blocked'
ORDER BY created_at, id FOR NO KEY UPDATE SKIP LOCKED

-- name: release_stranded
-- Releases stranded jobs and corrects their entries. They are locked, and checked once more.
WITH stranded AS MATERIALIZED (
    SELECT params.id
    FROM unnest(%(ids)s::text[]) AS params (id)
    WHERE NOT EXISTS (
        SELECT FROM {schema}.job_blocker
        WHERE job_id = params.id AND NOT closed
            AND (SELECT chain_status FROM {schema}.job AS chain WHERE chain.id = blocker_chain_id) = 'open')
),
marked AS (
    UPDATE {schema}.job_blocker SET closed = true FROM stranded WHERE job_id = stranded.id AND NOT closed
),
released AS (
    UPDATE {schema}.job
    SET status = CASE WHEN scheduled_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END,
        scheduled_at = greatest(scheduled_at, clock_timestamp()),
        open_blockers = 0
    FROM stranded
    WHERE job.id = stranded.id AND job.status = 'blocked'
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at
),
event AS (
    {insert_event}
    SELECT 'unblocked', {event_columns}, NULL, NULL
    FROM released
    WHERE {event_level:released.type} = 'all'
)
SELECT id, type FROM released

-- name: pause_job_types
-- Pauses job types, in one order. A paused type keeps its time and who paused it, and its reason unless a new one is
-- given.
INSERT INTO {schema}.paused_type (type, reason, paused_by)
SELECT type, %(reason)s, %(by)s FROM unnest(%(types)s::text[]) AS params (type)
ORDER BY type COLLATE "C"
ON CONFLICT (type) DO UPDATE SET reason = coalesce(excluded.reason, paused_type.reason)
RETURNING type

-- name: resume_job_types
-- Resumes job types, which it locks in the order in which they are written.
DELETE FROM {schema}.paused_type
WHERE type IN (SELECT type FROM {schema}.paused_type WHERE type = ANY (%(types)s::text[]) ORDER BY type FOR UPDATE)
RETURNING type

-- name: list_paused_job_types
-- Reads the paused job types, by name.
SELECT type, paused_at, reason, paused_by FROM {schema}.paused_type ORDER BY type

-- name: notify
-- Sends notifications when the caller's transaction commits.
SELECT pg_notify(%(channel)s::text, payload) FROM unnest(%(payloads)s::text[]) AS notification (payload)

-- name: database
-- Reads which database this is: its oid and when its server was started, which no other has both of; and for people its
-- name and address. Every login may read them.
SELECT pg_database.oid::int8, extract(epoch FROM pg_postmaster_start_time())::text,
    concat_ws(' at ', current_database(), host(inet_server_addr()) || ':' || inet_server_port())
FROM pg_database WHERE datname = current_database()
