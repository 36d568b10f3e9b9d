-- name: complete
-- Completes attempts of jobs that are the only ones of their chains, as most finishes are, each while its token holds
-- the job. Rows that another transaction has locked are left out, and so are chains that other jobs wait for: `finish`
-- writes those.
--
-- Tokens and outputs are looked up by the job's id in one JSON object, so there is no join that could be planned badly.
-- The statement waits for no lock, so the order of locks does not matter.
WITH finished AS (
    UPDATE {schema}.job
    SET status = 'completed',
        chain_status = 'completed',
        lease_expires_at = NULL,
        finished_at = clock_timestamp(),
        completed_tx = pg_current_xact_id(),
        chain_closed_at = clock_timestamp(),
        expires_at = clock_timestamp() + result_ttl * interval '1 second',
        output = %(params)s::jsonb -> id -> 1,
        -- Looked up only where attempts are traced: it takes as long as the output does.
        attempt_trace_context = CASE WHEN %(traced)s THEN %(params)s::jsonb -> id ->> 2 END,
        error = NULL
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.job
        WHERE id = ANY (ARRAY(SELECT jsonb_object_keys(%(params)s::jsonb)))
            AND {holds_lease:(%(params)s::jsonb -> id ->> 0)::uuid}
            AND chain_index = 0 AND NOT has_dependents
        FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING id, type, attempt, scheduled_at, started_at, holder
),
event AS (
    {insert_events}
    SELECT 'completed', 'completed', 0, type, type, attempt, holder, NULL,
        array_agg(id), NULL, array_agg(scheduled_at), array_agg(started_at)
    FROM (
        SELECT *, row_number() OVER () AS place FROM finished
        WHERE {logs_final}
    ) AS entry
    GROUP BY place / {events_a_row}, type, attempt, holder ORDER BY min(place)
)
SELECT id FROM finished

-- name: complete_and_commit
-- Completes the attempt whose job this transaction has locked, the only job of its chain. It is sent together with
-- COMMIT, so it must fail if it writes nothing: then it divides by zero, and the transaction rolls back.
WITH finished AS (
    UPDATE {schema}.job
    SET status = 'completed',
        chain_status = 'completed',
        lease_expires_at = NULL,
        finished_at = clock_timestamp(),
        completed_tx = pg_current_xact_id(),
        chain_closed_at = clock_timestamp(),
        expires_at = clock_timestamp() + result_ttl * interval '1 second',
        output = %(output)s::jsonb,
        attempt_trace_context = %(trace)s::text,
        error = NULL
    WHERE id = %(id)s AND {holds_lease:%(token)s::uuid}
        AND chain_index = 0 AND NOT has_dependents
    RETURNING id, type, attempt, scheduled_at, started_at, holder
),
event AS (
    {insert_event}
    SELECT 'completed', 'completed', id, id, 0, type, type, attempt, scheduled_at, started_at, holder, NULL
    FROM finished
    WHERE {logs_final}
)
SELECT 1 / count(*) FROM finished

-- name: finish_simple
-- Finishes attempts that change only their own row: completions and failures of jobs that are the only ones of their
-- chains, and attempts that are retried. So many failures at once cost little more than completions. Tokens, locked
-- rows and dependents are treated as in `complete`.
WITH completed AS (
    UPDATE {schema}.job
    SET status = 'completed',
        chain_status = 'completed',
        lease_expires_at = NULL,
        finished_at = clock_timestamp(),
        completed_tx = pg_current_xact_id(),
        chain_closed_at = clock_timestamp(),
        expires_at = clock_timestamp() + result_ttl * interval '1 second',
        output = %(completed)s::jsonb -> id -> 1,
        attempt_trace_context = CASE WHEN %(traced)s THEN %(completed)s::jsonb -> id ->> 2 END,
        error = NULL
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.job
        WHERE id = ANY (ARRAY(SELECT jsonb_object_keys(%(completed)s::jsonb)))
            AND {holds_lease:(%(completed)s::jsonb -> id ->> 0)::uuid}
            AND chain_index = 0 AND NOT has_dependents
        FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING id, lease_token, status, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, holder,
        error
),
-- For each failed attempt: the token, the seconds to the next attempt (null for none), whether its process died, the
-- trace context of the attempt, the error if there is one, and the error among the failures if that is shorter.
failed AS (
    UPDATE {schema}.job
    SET status = CASE WHEN (%(failed)s::jsonb -> id ->> 1)::float8 > 0 THEN 'scheduled'
                      WHEN (%(failed)s::jsonb -> id ->> 1) IS NOT NULL THEN 'ready'
                      ELSE 'failed' END,
        chain_status = CASE WHEN (%(failed)s::jsonb -> id ->> 1) IS NULL THEN 'failed' ELSE chain_status END,
        lease_expires_at = NULL,
        finished_at = CASE WHEN (%(failed)s::jsonb -> id ->> 1) IS NULL THEN clock_timestamp() END,
        completed_tx = CASE WHEN (%(failed)s::jsonb -> id ->> 1) IS NULL THEN pg_current_xact_id() END,
        chain_closed_at = CASE WHEN (%(failed)s::jsonb -> id ->> 1) IS NULL THEN clock_timestamp() END,
        expires_at = CASE WHEN (%(failed)s::jsonb -> id ->> 1) IS NULL
            THEN clock_timestamp() + result_ttl * interval '1 second' END,
        scheduled_at = CASE WHEN (%(failed)s::jsonb -> id ->> 1) IS NULL THEN scheduled_at
            ELSE clock_timestamp() + (%(failed)s::jsonb -> id ->> 1)::float8 * interval '1 second' END,
        lease_expirations = lease_expirations + (%(failed)s::jsonb -> id ->> 2)::int,
        attempt_trace_context = %(failed)s::jsonb -> id ->> 3,
        error = %(failed)s::jsonb -> id -> 4,
        failures = {kept_failures} || jsonb_build_object({failed_attempt},
            'error', coalesce(%(failed)s::jsonb -> id -> 5, %(failed)s::jsonb -> id -> 4))
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.job
        WHERE id = ANY (ARRAY(SELECT jsonb_object_keys(%(failed)s::jsonb)))
            AND {holds_lease:(%(failed)s::jsonb -> id ->> 0)::uuid}
            AND ((%(failed)s::jsonb -> id ->> 1) IS NOT NULL OR chain_index = 0 AND NOT has_dependents)
        FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING id, lease_token, status, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, holder,
        error
),
finished AS (
    SELECT 'completed' AS kind, * FROM completed
    UNION ALL
    SELECT CASE status WHEN 'failed' THEN 'failed' ELSE 'retried' END, * FROM failed
),
event AS (
    {insert_events}
    SELECT kind, status, chain_index, type, chain_type, attempt, holder, error,
        {event_arrays}
    FROM (
        SELECT *, row_number() OVER () AS place FROM finished
        -- An attempt that will be retried is logged at the highest level only.
        WHERE CASE WHEN kind = 'retried' THEN {logs_all} ELSE {logs_final} END
    ) AS entry
    GROUP BY place / {events_a_row}, kind, status, chain_index, type, chain_type, attempt, holder, error ORDER BY min(place)
)
SELECT id, lease_token::text, status FROM finished

-- name: finish
-- Finishes attempts of all kinds. A row is written only while its token holds the job; the token stays in the row to
-- show who finished it. Rows, and the chains that close, are locked first, oldest first. Rows that another transaction
-- has locked are left out, so that one locked row does not delay the batch. So are chains that other jobs wait for,
-- unless the caller releases those jobs in the same transaction (`closes_awaited`).
WITH params AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(finishes)s::json) AS f (
        id text, token uuid, kind text, delay float8, output jsonb, error jsonb, root text,
        next_id text, next_type text, next_input jsonb, next_priority int, next_delay float8, next_moment timestamptz,
        next_trace text, next_limit text, crashed bool, ttl float8, trace text, short_error jsonb,
        next_inherits bool)
),
locked AS MATERIALIZED (
    SELECT id, has_dependents FROM {schema}.job
    WHERE id = ANY (%(rows)s::text[])
        AND (id = ANY (%(roots)s::text[]) OR {holds_lease:ANY (%(tokens)s::uuid[])})
    ORDER BY created_at, id FOR NO KEY UPDATE SKIP LOCKED
),
closable AS (
    SELECT id FROM locked WHERE %(closes_awaited)s OR NOT has_dependents
),
finished AS (
    UPDATE {schema}.job
    SET status = CASE params.kind
            WHEN 'complete' THEN 'completed' WHEN 'continue' THEN 'continued'
            WHEN 'fail' THEN 'failed' WHEN 'cancel' THEN 'cancelled'
            WHEN 'retry' THEN CASE WHEN params.delay > 0 THEN 'scheduled' ELSE 'ready' END
            -- next_delay and next_moment are of a continuation, or of the job itself if it is snoozed.
            WHEN 'snooze' THEN CASE WHEN coalesce(params.next_moment > clock_timestamp(), params.next_delay > 0)
                THEN 'scheduled' ELSE 'ready' END
            ELSE 'ready' END,
        chain_status = CASE WHEN chain_index > 0 THEN NULL
            ELSE CASE params.kind WHEN 'complete' THEN 'completed' WHEN 'fail' THEN 'failed'
                                 WHEN 'cancel' THEN 'cancelled' ELSE chain_status END END,
        chain_closed_at = CASE WHEN chain_index = 0 AND params.kind IN ('complete', 'fail', 'cancel')
            THEN clock_timestamp() END,
        expires_at = CASE WHEN chain_index = 0 AND params.kind IN ('complete', 'fail', 'cancel')
            THEN clock_timestamp() + coalesce(params.ttl, result_ttl) * interval '1 second' END,
        finished_at = CASE WHEN params.kind NOT IN ('retry', 'interrupt', 'wait', 'snooze') THEN clock_timestamp() END,
        completed_tx = CASE WHEN params.kind NOT IN ('retry', 'interrupt', 'wait', 'snooze') THEN pg_current_xact_id() END,
        scheduled_at = CASE params.kind WHEN 'retry' THEN clock_timestamp() + params.delay * interval '1 second'
                                       WHEN 'wait' THEN clock_timestamp()
                                       WHEN 'snooze' THEN greatest(clock_timestamp(), coalesce(params.next_moment,
                                           clock_timestamp() + params.next_delay * interval '1 second'))
                                       ELSE scheduled_at END,
        uncounted = uncounted + (params.kind IN ('interrupt', 'wait', 'snooze'))::int,
        lease_expirations = lease_expirations + params.crashed::int,
        output = CASE params.kind WHEN 'complete' THEN coalesce(params.output, 'null') WHEN 'continue' THEN params.output END,
        error = params.error,
        failures = CASE WHEN params.kind IN ('retry', 'fail')
            THEN {kept_failures} || jsonb_build_object({failed_attempt}, 'error', coalesce(params.short_error, params.error))
            ELSE job.failures END,
        attempt_trace_context = params.trace,
        continued_by = params.next_id,
        lease_expires_at = NULL
    FROM params
    WHERE job.id = params.id AND {holds_lease:params.token}
        AND job.id IN (SELECT id FROM locked)
        AND (params.kind IN ('continue', 'retry', 'interrupt', 'wait', 'snooze')
             OR coalesce(params.root, params.id) IN (SELECT id FROM closable))
    RETURNING job.id, job.lease_token, job.type, job.status, job.chain_id, job.chain_type, job.chain_index, job.priority,
        job.result_ttl, params.ttl, params.kind, job.attempt, job.scheduled_at, job.started_at, job.holder, job.error,
        job.limit_key
),
closed AS (
    UPDATE {schema}.job
    SET chain_status = finished.status, chain_closed_at = clock_timestamp(), completed_tx = pg_current_xact_id(),
        expires_at = clock_timestamp() + coalesce(finished.ttl, job.result_ttl) * interval '1 second'
    FROM finished
    WHERE job.id = finished.chain_id AND finished.chain_index > 0 AND finished.status IN ('completed', 'failed', 'cancelled')
    RETURNING job.id, {chain_seconds} AS seconds
),
continued AS (
    INSERT INTO {schema}.job
        (id, type, chain_id, chain_type, chain_index, status, priority, scheduled_at, input, trace_context, limit_key,
         result_ttl)
    SELECT params.next_id, params.next_type, finished.chain_id, finished.chain_type, finished.chain_index + 1,
        CASE WHEN due.at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END,
        coalesce(params.next_priority, finished.priority), due.at, coalesce(params.next_input, 'null'), params.next_trace,
        coalesce(params.next_limit, CASE WHEN params.next_inherits THEN finished.limit_key END), finished.result_ttl
    FROM finished
    JOIN params ON params.id = finished.id AND params.token = finished.lease_token
    CROSS JOIN LATERAL (
        SELECT greatest(coalesce(params.next_moment, clock_timestamp() + params.next_delay * interval '1 second'),
                        clock_timestamp()) AS at
    ) AS due
    WHERE finished.status = 'continued'
    RETURNING id, status, chain_id, chain_index, type, chain_type, scheduled_at
),
event AS (
    {insert_events}
    SELECT CASE kind WHEN 'retry' THEN 'retried' WHEN 'interrupt' THEN 'interrupted' WHEN 'wait' THEN 'waiting'
                     WHEN 'snooze' THEN 'snoozed' WHEN 'create' THEN 'created' ELSE status END,
        status, chain_index, type, chain_type, attempt, holder, error,
        {event_arrays}
    FROM (
        SELECT *, row_number() OVER () AS place
        FROM (
            SELECT kind, {event_columns}, holder, error
            FROM finished
            UNION ALL
            SELECT 'create', status, id, chain_id, chain_index, type, chain_type, 0, scheduled_at, NULL, NULL, NULL
            FROM continued
        ) AS one
        WHERE {event_level:one.type}
            IN ('all', CASE WHEN one.kind IN ('complete', 'continue', 'fail', 'cancel') THEN 'terminal' END)
    ) AS entry
    GROUP BY place / {events_a_row}, kind, status, chain_index, type, chain_type, attempt, holder, error ORDER BY min(place)
)
SELECT finished.id, finished.lease_token::text, finished.status, closed.seconds
FROM finished LEFT JOIN closed ON closed.id = finished.chain_id AND finished.status IN ('completed', 'failed', 'cancelled')

-- name: read_inherited
-- Reads what chains that a job starts may inherit: its limit key, and the attributes of its chain.
SELECT job.id, job.limit_key, root.attributes::text
FROM {schema}.job JOIN {schema}.job AS root ON root.id = job.chain_id
WHERE job.id = ANY (%(ids)s::text[])

-- name: lock_for_attempt
-- Locks a job and its chain for a transaction of a handler, the older row first: whoever would reap, cancel or close it
-- waits or skips it. The handler's statements get the server's planner settings, not those of our connections
-- (see pool.py), and as much time as they need.
SELECT id, lease_token::text, lease_expires_at IS NOT NULL, has_dependents,
    set_config('idle_in_transaction_session_timeout', %(idle)s, true),
    CASE WHEN version() ~ 'linux' THEN set_config('tcp_user_timeout', %(idle)s, true) END,
    CASE current_setting('queuert.transaction_timeout', true) WHEN '0'
        THEN set_config('transaction_timeout', '0', true) END,
    set_config('plan_cache_mode', 'auto', true), set_config('enable_seqscan', 'on', true),
    set_config('jit', coalesce(nullif(current_setting('queuert.jit', true), ''), current_setting('jit')), true)
FROM {schema}.job
WHERE id IN (%(root)s, %(id)s)
ORDER BY created_at, id FOR NO KEY UPDATE

-- name: set_short_lock_timeout
-- Sets the lock timeout for callers that must not wait: longer than a statement holds a lock, shorter than a user's
-- transaction. Callers that may wait set their limit here too, when they send a whole transaction in one round trip,
-- and how long it may be idle, and take as a whole: the server may have received only its beginning.
SELECT set_config('lock_timeout', coalesce(%(lock)s, current_setting('lock_timeout')), true),
    set_config('idle_in_transaction_session_timeout', %(idle)s, true),
    CASE current_setting('transaction_timeout', true) WHEN '0'
        THEN set_config('transaction_timeout', %(whole)s, true) END

-- name: restart_timeout
-- Lets the timeout of the whole transaction begin again, unless it is that of the role or the database.
SELECT set_config(name, '0', true), set_config(name, %(whole)s, true)
FROM pg_settings
WHERE name = 'transaction_timeout' AND setting = %(whole)s

-- name: release_dependents
-- Releases the jobs that waited for chains which have closed. It runs after the statement that closed them, in the same
-- transaction: a snapshot from before the chain was locked could miss a job that had just begun to wait. The entries of
-- each chain are looked up separately (OFFSET 0), and rows are named one by one, so that tables with outdated
-- statistics are not scanned. What belongs to a row is looked up in an object: the planner takes each of these lists for
-- a few rows, and would join two of thousands row by row.
WITH marked AS (
    UPDATE {schema}.job_blocker SET closed = true
    WHERE ctid = ANY (ARRAY(
        SELECT entry.tid
        FROM unnest(%(chains)s::text[]) AS about (id)
        CROSS JOIN LATERAL (
            SELECT id FROM {schema}.job WHERE job.id = about.id AND chain_status <> 'open' OFFSET 0
        ) AS chain
        CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM {schema}.job_blocker WHERE blocker_chain_id = chain.id AND NOT closed OFFSET 0
        ) AS entry))
    RETURNING job_id
),
counted AS MATERIALIZED (
    SELECT job_id, count(*) AS closed FROM marked GROUP BY job_id
),
tally AS MATERIALIZED (
    SELECT jsonb_object_agg(job_id, closed) AS closed FROM counted
),
locked AS MATERIALIZED (
    SELECT id, status FROM {schema}.job
    WHERE id = ANY (ARRAY(SELECT job_id FROM counted)) ORDER BY created_at, id FOR NO KEY UPDATE
),
blocked AS MATERIALIZED (
    SELECT jsonb_object_agg(id, true) AS ids FROM locked WHERE status = 'blocked'
),
released AS (
    UPDATE {schema}.job
    SET open_blockers = open_blockers - ((SELECT closed FROM tally) ->> id)::int,
        scheduled_at = CASE WHEN status = 'blocked' AND open_blockers = ((SELECT closed FROM tally) ->> id)::int
                            THEN greatest(scheduled_at, clock_timestamp()) ELSE scheduled_at END,
        status = CASE WHEN status <> 'blocked' OR open_blockers > ((SELECT closed FROM tally) ->> id)::int THEN status
                      WHEN scheduled_at > clock_timestamp() THEN 'scheduled'
                      ELSE 'ready' END
    WHERE id = ANY (ARRAY(SELECT id FROM locked))
    RETURNING id, status, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at,
        (SELECT ids FROM blocked) ? id AS was_blocked
),
event AS (
    {insert_event}
    SELECT 'unblocked', {event_columns}, NULL, NULL
    FROM released
    WHERE was_blocked AND status <> 'blocked'
        AND {event_level:released.type} = 'all'
)
SELECT type, status FROM released

-- name: lease_states
-- Reads which token holds each of these jobs, or finished it.
SELECT id, status, lease_token::text, lease_expires_at IS NOT NULL FROM {schema}.job WHERE id = ANY (%(ids)s::text[])

-- name: reap
-- Turns expired leases into failed attempts, with a backoff. Each row is checked again under its lock, so a lease that
-- was renewed meanwhile stays, and so does one that was extended because its row was locked (see renew). Jobs at their
-- last attempt are only selected here: their chains must be locked before they close. Others may hold the locks for as
-- long as they like, so these jobs come after those that go on, and those up to the one that was tried last (`after`)
-- come last: however many cannot fail yet, no round is filled by the same ones as the round before.
WITH policy AS MATERIALIZED (
    SELECT * FROM unnest(%(types)s::text[], %(max_attempts)s::int[], %(initials)s::float8[], %(multipliers)s::float8[],
                         %(maximums)s::float8[], %(jitters)s::float8[], %(max_crashes)s::int[])
        AS p (type, max_attempts, initial, multiplier, maximum, jitter, max_crashes)
),
extended AS MATERIALIZED (
    SELECT job_id, lease_token, expires_at FROM {schema}.lease_extension WHERE expires_at > clock_timestamp()
),
-- Expired long ago. The table has a row for each renewal that a lock has prevented, so few that it is read whole.
forgotten AS (
    DELETE FROM {schema}.lease_extension
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.lease_extension WHERE expires_at < clock_timestamp() - interval '1 minute'
        LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
),
expired AS MATERIALIZED (
    SELECT id, type, chain_id, chain_type, attempt, uncounted, lease_expirations, lease_token, lease_expires_at, holder,
        verdict.spent
    FROM {schema}.job
    JOIN policy USING (type)
    CROSS JOIN LATERAL (
        SELECT attempt - uncounted >= coalesce(job.max_attempts, policy.max_attempts)
            OR lease_expirations + 1 >= max_crashes AS spent
    ) AS verdict
    WHERE status = 'running' AND type = ANY (%(types)s::text[]) AND lease_expires_at <= clock_timestamp()
        AND (id, lease_token) NOT IN (SELECT job_id, lease_token FROM extended)
    ORDER BY verdict.spent, verdict.spent AND (lease_expires_at, id) <= (
            coalesce(%(after)s::timestamptz, '-infinity'), coalesce(%(after_id)s::text, '')),
        lease_expires_at, id
    LIMIT %(limit)s FOR UPDATE OF job SKIP LOCKED
),
judged AS (
    SELECT expired.*,
        CASE WHEN initial = 0 THEN 0
             WHEN (attempt - uncounted - 1) * ln(multiplier) > 100 THEN maximum
             ELSE least(maximum, initial * power(multiplier, attempt - uncounted - 1))
        END * (1 + jitter * random()) AS delay,
        jsonb_build_object('kind', 'lease_expired', 'message',
            'the lease of worker ' || coalesce(holder, '?') || ' expired: it crashed, froze or lost the database') AS error
    FROM expired JOIN policy USING (type)
),
returned AS (
    UPDATE {schema}.job
    SET status = CASE WHEN judged.delay > 0 THEN 'scheduled' ELSE 'ready' END,
        -- Without a delay it keeps its position among the due jobs.
        scheduled_at = CASE WHEN judged.delay > 0 THEN clock_timestamp() + judged.delay * interval '1 second'
                            ELSE scheduled_at END,
        lease_expirations = job.lease_expirations + 1,
        lease_token = NULL,
        lease_expires_at = NULL,
        error = judged.error,
        failures = {kept_failures} || jsonb_build_object({failed_attempt}, 'error', judged.error)
    FROM judged
    WHERE job.id = judged.id AND NOT judged.spent
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at, job.holder, job.error
),
event AS (
    {insert_event}
    SELECT 'lease_expired', {event_columns}, holder, error
    FROM returned
    WHERE {event_level:returned.type} = 'all'
),
following AS (
    -- An expired lease among the remaining ones is locked by another transaction just now.
    SELECT extract(epoch FROM least(min(lease_expires_at), (SELECT min(expires_at) FROM extended))
        - clock_timestamp())::float8 AS seconds
    FROM {schema}.job
    WHERE status = 'running' AND type = ANY (%(types)s::text[]) AND id NOT IN (SELECT id FROM expired)
        AND (id, lease_token) NOT IN (SELECT job_id, lease_token FROM extended)
)
SELECT {expired_columns}, following.seconds
FROM judged LEFT JOIN returned USING (id) RIGHT JOIN following ON true

-- name: fail_expired
-- Fails a job whose lease expired on its last attempt, and closes its chain; the caller has locked both.
WITH finished AS (
    UPDATE {schema}.job
    SET status = 'failed',
        finished_at = clock_timestamp(),
        completed_tx = pg_current_xact_id(),
        chain_status = CASE WHEN chain_index = 0 THEN 'failed' END,
        chain_closed_at = CASE WHEN chain_index = 0 THEN clock_timestamp() END,
        expires_at = CASE WHEN chain_index = 0 THEN clock_timestamp() + result_ttl * interval '1 second' END,
        lease_expirations = job.lease_expirations + 1,
        lease_token = NULL,
        lease_expires_at = NULL,
        error = {last_expiry},
        failures = {kept_failures} || jsonb_build_object({failed_attempt}, 'error', {last_expiry})
    FROM unnest(%(ids)s::text[], %(tokens)s::uuid[]) AS params (id, token)
    WHERE job.id = params.id AND job.lease_token = params.token AND job.lease_expires_at <= clock_timestamp()
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at, job.holder, job.error, {chain_seconds} AS seconds
),
closed AS (
    UPDATE {schema}.job
    SET chain_status = 'failed', chain_closed_at = clock_timestamp(), completed_tx = pg_current_xact_id(),
        expires_at = clock_timestamp() + result_ttl * interval '1 second'
    FROM finished WHERE job.id = finished.chain_id AND finished.chain_index > 0
    RETURNING job.id, {chain_seconds} AS seconds
),
event AS (
    {insert_event}
    SELECT 'lease_expired', {event_columns}, holder, error
    FROM finished
    WHERE {event_level:finished.type} <> 'off'
)
SELECT coalesce(finished.seconds, closed.seconds)
FROM finished LEFT JOIN closed ON closed.id = finished.chain_id
