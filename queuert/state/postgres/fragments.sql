-- name: rank
-- The order in which the jobs of a type are claimed, best first. It must be the expression of the index job_ready.
attempt - uncounted - lease_expirations - priority

-- name: holds_lease
-- The fence: whether a job's lease has the token `{of}`. A statement that writes for an attempt has it, or runs under the
-- lock of one that has, so that nothing happens between the check and the write. When a lease ends, the token stays in the
-- row, as evidence of who had it, and lease_expires_at becomes NULL.
lease_token = {of} AND lease_expires_at IS NOT NULL

-- name: fits
-- Whether the inputs fit up to this one. The first of a claim fits, whatever its size, unless the claim has `begun` with
-- another statement.
(upto <= %(max_bytes)s OR upto = bytes AND NOT %(begun)s)

-- name: within_page
-- Whether an entry of a list by time lies between the bounds of the page.
(created_at, id) > (%(low)s::timestamptz, %(low_id)s::text)
            AND (created_at, id) < (%(high)s::timestamptz, %(high_id)s::text)

-- name: lock_timeout
-- Sets how many milliseconds the statements of a transaction wait for a lock: `timeout`, or what the login has if that
-- is less or if there is no `timeout`. It is for the row of pg_settings.
set_config('lock_timeout', CASE WHEN reset_val::int BETWEEN 1 AND %(timeout)s::int OR %(timeout)s::int IS NULL
        THEN reset_val ELSE (%(timeout)s::int)::text END, true)

-- name: event_level
-- The event level of a job type: 'all', 'terminal' or 'off'. `{of}` is the type, such as finished.type.
coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = {of}), (SELECT level FROM {schema}.event_log))

-- name: not_begun
-- 0 for the first job of a chain that has begun, else 1: in its key's order, chains that have begun go first. As a number,
-- because the planner takes conditions with booleans apart and does not find them in the index.
(CASE WHEN attempt = 0 AND status <> 'continued' THEN 1 ELSE 0 END)

-- name: logs_all
-- Whether all events of a row's `type` are logged. For many rows: the levels are looked up once for all of them.
CASE WHEN (SELECT level FROM {schema}.event_log) = 'all'
            THEN type <> ALL (ARRAY(SELECT type FROM {schema}.event_level WHERE level <> 'all'))
            ELSE type = ANY (ARRAY(SELECT type FROM {schema}.event_level WHERE level = 'all')) END

-- name: logs_final
-- Whether the final events of a row's `type` are logged, such as completions and failures. For many rows, as logs_all.
CASE WHEN (SELECT level FROM {schema}.event_log) <> 'off'
            THEN type <> ALL (ARRAY(SELECT type FROM {schema}.event_level WHERE level = 'off'))
            ELSE type = ANY (ARRAY(SELECT type FROM {schema}.event_level WHERE level <> 'off')) END

-- name: kept_failures
-- The failures of a `job` that are kept beside a new one, which is appended: all but the second oldest, once there are
-- {max_failures}. A value that is no array, such as a manual edit, is dropped.
CASE WHEN jsonb_typeof(job.failures) <> 'array' OR job.failures IS NULL THEN '[]'
            WHEN jsonb_array_length(job.failures) < {max_failures} THEN job.failures
            ELSE job.failures - 1 END

-- name: failed_attempt
-- The attempt of a `job` that fails now, as pairs of a JSON object. Its error is to be added.
'attempt', job.attempt, 'started_at', job.started_at, 'failed_at', clock_timestamp(), 'worker', job.holder

-- name: last_expiry
-- The error of a `job` whose lease expired on its last attempt.
jsonb_build_object('kind', 'lease_expired', 'message',
            'the lease of worker ' || coalesce(job.holder, '?') || ' expired'
            || CASE WHEN job.lease_expirations > 0
                THEN ', and the job has expired ' || job.lease_expirations + 1
                    || ' times: it may be what kills its workers'
                ELSE ' on the last attempt' END)

-- name: chain_seconds
-- How long the chain took whose first `job` has closed it; NULL for another job, and while the chain is open.
extract(epoch FROM job.chain_closed_at - job.created_at)::float8

-- name: insert_event
-- One event a row of the log: SELECT kind, {event_columns}, worker, error.
INSERT INTO {schema}.job_event
        (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, worker, error)

-- name: insert_phase_event
-- One event of a phase a row of the log: SELECT kind, {event_columns}, worker, progress.
INSERT INTO {schema}.job_event
        (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, worker, progress)

-- name: event_columns
-- The columns that an event copies from the row of its job.
status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at

-- name: insert_events
-- Up to {events_a_row} events a row of the log: SELECT the columns that they share, then {event_arrays}.
INSERT INTO {schema}.job_event
        (kind, status, chain_index, type, chain_type, attempt, worker, error, job_ids, chain_ids, scheduled_ats, started_ats)

-- name: event_arrays
-- The columns that differ among events of one row. The first job of a chain has the chain's id: without `chain_ids` all
-- are first jobs.
array_agg(id), array_agg(chain_id) FILTER (WHERE chain_index > 0), array_agg(scheduled_at), array_agg(started_at)

-- name: progress_entries
-- Makes renewals write the progress of the jobs `logged` to the event log as well.
,
logged_progress AS (
    INSERT INTO {schema}.job_event
        (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, worker, progress)
    SELECT 'progressed', status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, holder,
        progress
    FROM renewed WHERE id = ANY (%(logged)s::text[]) AND {logs_all}
)

-- name: attribute_entries
-- Makes a start write the index rows by which its chains (`written`) are found by their attributes, in the same round
-- trip.
,
entry AS (
    INSERT INTO {schema}.chain_attribute (name, value, created_at, chain_id)
    SELECT DISTINCT given.name, one.value, written.created_at, written.id
    FROM written
    CROSS JOIN LATERAL jsonb_each(written.attributes) AS given (name, content)
    CROSS JOIN LATERAL jsonb_array_elements_text(
        CASE jsonb_typeof(given.content) WHEN 'array' THEN given.content ELSE jsonb_build_array(given.content) END
    ) AS one (value)
)

-- name: known_types
-- The types of all jobs, if `types` names none. The index is read with one step for each type.
known (type) AS (
    (
        SELECT first.type FROM (
            (SELECT type FROM {schema}.job WHERE chain_index = 0 AND status <> 'running' ORDER BY type LIMIT 1)
            UNION ALL
            (SELECT type FROM {schema}.job WHERE chain_index > 0 AND status <> 'running' ORDER BY type LIMIT 1)
            UNION ALL
            (SELECT type FROM {schema}.job WHERE status = 'running' ORDER BY type LIMIT 1)
        ) AS first
        WHERE %(types)s::text[] IS NULL ORDER BY first.type LIMIT 1
    )
    UNION ALL
    SELECT next.type FROM known
    CROSS JOIN LATERAL (
        SELECT following.type FROM (
            (SELECT type FROM {schema}.job WHERE chain_index = 0 AND status <> 'running' AND job.type > known.type ORDER BY type LIMIT 1)
            UNION ALL
            (SELECT type FROM {schema}.job WHERE chain_index > 0 AND status <> 'running' AND job.type > known.type ORDER BY type LIMIT 1)
            UNION ALL
            (SELECT type FROM {schema}.job WHERE status = 'running' AND job.type > known.type ORDER BY type LIMIT 1)
        ) AS following
        ORDER BY following.type LIMIT 1
    ) AS next
)

-- name: is_later
-- Whether a scheduled job is not due yet, in a list by another index.
(SELECT same.scheduled_at FROM {schema}.job AS same WHERE same.id = job.id) > statement_timestamp()

-- name: record_activity
-- A clause of WITH that adds the report %(report)s of the worker %(id)s to what it did, in each row once.
recorded AS (
    INSERT INTO {schema}.activity AS known
        (seconds, begins_at, type, worker, report, {activity_counts}, wait, run)
    SELECT 60, given.minute, given.type, %(id)s::text, %(report)s::bigint,
        given.counts[1], given.counts[2], given.counts[3], given.counts[4], given.counts[5],
        given.counts[6], given.counts[7], given.counts[8], given.counts[9], given.counts[10],
        given.counts[11], given.wait, given.run
    FROM (
        SELECT params.minute, params.type, params.counts::bigint[] AS counts, params.wait::bigint[] AS wait,
            params.run::bigint[] AS run
        FROM unnest(
            %(minutes)s::timestamptz[], %(counted_types)s::text[], %(counts)s::text[], %(waits)s::text[], %(runs)s::text[]
        ) AS params (minute, type, counts, wait, run)
    ) AS given
    ON CONFLICT (seconds, begins_at, type, worker) DO UPDATE SET report = excluded.report, {add_activity}
    WHERE known.report < excluded.report
)

-- name: activity_counts
-- The counts of attempts, in the order of queuert.activity.COUNTS.
started, completed, continued, retried, failed, cancelled, interrupted, waiting, rejected, reaped, snoozed

-- name: add_activity
-- Adds a row that exists already (`excluded`) to it (`known`).
started = known.started + excluded.started, completed = known.completed + excluded.completed,
        continued = known.continued + excluded.continued, retried = known.retried + excluded.retried,
        failed = known.failed + excluded.failed, cancelled = known.cancelled + excluded.cancelled,
        interrupted = known.interrupted + excluded.interrupted, waiting = known.waiting + excluded.waiting,
        rejected = known.rejected + excluded.rejected, reaped = known.reaped + excluded.reaped,
        snoozed = known.snoozed + excluded.snoozed,
        wait = {add_histogram:wait}, run = {add_histogram:run}

-- name: add_histogram
-- Adds two histograms, of which the shorter lacks zeros at its end.
ARRAY(
            SELECT coalesce(bucket.known, 0) + coalesce(bucket.added, 0)
            FROM unnest(known.{of}, excluded.{of}) WITH ORDINALITY AS bucket (known, added, position)
            ORDER BY bucket.position
        )

-- name: sum_activity
-- Sums the counts and histograms of several rows.
sum(started)::bigint, sum(completed)::bigint, sum(continued)::bigint, sum(retried)::bigint, sum(failed)::bigint,
        sum(cancelled)::bigint, sum(interrupted)::bigint, sum(waiting)::bigint, sum(rejected)::bigint,
        sum(reaped)::bigint, sum(snoozed)::bigint, {sum_histogram:wait}, {sum_histogram:run}

-- name: sum_histogram
-- Sums each of the 27 buckets; one that an array lacks is null, and not summed.
ARRAY[
            coalesce(sum({of}[1]), 0)::bigint, coalesce(sum({of}[2]), 0)::bigint, coalesce(sum({of}[3]), 0)::bigint,
            coalesce(sum({of}[4]), 0)::bigint, coalesce(sum({of}[5]), 0)::bigint, coalesce(sum({of}[6]), 0)::bigint,
            coalesce(sum({of}[7]), 0)::bigint, coalesce(sum({of}[8]), 0)::bigint, coalesce(sum({of}[9]), 0)::bigint,
            coalesce(sum({of}[10]), 0)::bigint, coalesce(sum({of}[11]), 0)::bigint, coalesce(sum({of}[12]), 0)::bigint,
            coalesce(sum({of}[13]), 0)::bigint, coalesce(sum({of}[14]), 0)::bigint, coalesce(sum({of}[15]), 0)::bigint,
            coalesce(sum({of}[16]), 0)::bigint, coalesce(sum({of}[17]), 0)::bigint, coalesce(sum({of}[18]), 0)::bigint,
            coalesce(sum({of}[19]), 0)::bigint, coalesce(sum({of}[20]), 0)::bigint, coalesce(sum({of}[21]), 0)::bigint,
            coalesce(sum({of}[22]), 0)::bigint, coalesce(sum({of}[23]), 0)::bigint, coalesce(sum({of}[24]), 0)::bigint,
            coalesce(sum({of}[25]), 0)::bigint, coalesce(sum({of}[26]), 0)::bigint, coalesce(sum({of}[27]), 0)::bigint
        ]

-- name: step_columns
-- A step, and the seconds until the end of a sleep or wait, or 0.
number, name, attempt, recorded_at, result::text, wake_at,
    greatest(extract(epoch FROM wake_at - clock_timestamp()), 0)::float8, event, answered_at, started_at

-- name: lease
-- Makes a `job` running, with the lease of its type in `wanted`.
status = 'running',
        attempt = attempt + 1,
        started_at = clock_timestamp(),
        lease_expires_at = clock_timestamp() + wanted.lease_seconds * interval '1 second',
        lease_token = %(token)s::uuid,
        holder = %(holder)s

-- name: input_bytes
-- The length of the `input` of a job; that of a compressed one is estimated.
pg_column_size(input) * CASE WHEN pg_column_compression(input) IS NULL THEN 1 ELSE %(expansion)s::float8 END

-- name: one_type
-- Clauses of `claim_many`: the one type of which a job is ready, if no other has jobs, and no job is due.
heads AS MATERIALIZED (
    SELECT unpaused.type, unpaused.first_rank, unpaused.first_time, head.due
    FROM unpaused
    CROSS JOIN LATERAL (
        (SELECT false AS due
         FROM {schema}.job
         WHERE job.type = unpaused.type AND status = 'ready'
             AND ({rank}, scheduled_at) >= (unpaused.first_rank, unpaused.first_time)
         ORDER BY {rank}, scheduled_at LIMIT 1)
        UNION ALL
        (SELECT true
         FROM {schema}.job
         WHERE job.type || '' = unpaused.type AND status = 'scheduled' AND scheduled_at <= statement_timestamp()
         ORDER BY scheduled_at LIMIT 1)
    ) AS head
),
one_type AS MATERIALIZED (
    SELECT type, first_rank, first_time FROM heads WHERE NOT due AND (SELECT count(*) FROM heads) = 1
),

-- name: lock_missing
-- Clauses of `claim_rest`: jobs of any type in the place of those that others have locked, and which inputs fit.
missing AS (
    SELECT scan_time.jobs - locked_size.jobs AS number FROM scan_time, locked_size
),
topup AS MATERIALIZED (
    SELECT other.*
    FROM missing
    CROSS JOIN unpaused
    CROSS JOIN LATERAL (
        SELECT job.ctid AS tid, {input_bytes} AS bytes
        FROM {schema}.job
        WHERE job.type = unpaused.type AND status = 'ready' AND job.ctid <> ALL (ARRAY(SELECT tid FROM locked))
            AND ({rank}, scheduled_at) >= (unpaused.first_rank, unpaused.first_time)
        ORDER BY {rank}, scheduled_at LIMIT missing.number FOR UPDATE SKIP LOCKED
    ) AS other
    LIMIT (SELECT number FROM missing)
),
total AS MATERIALIZED (
    SELECT (SELECT bytes FROM locked_size) + coalesce((SELECT sum(bytes) FROM topup), 0) AS bytes
),
-- Summed up in order only if they do not all fit.
fitting AS (
    SELECT tid
    FROM (
        SELECT tid, bytes, sum(bytes) OVER (ORDER BY rank, turn, position, tid ROWS UNBOUNDED PRECEDING) AS upto
        FROM (
            SELECT tid, rank, position, bytes, row_number() OVER (PARTITION BY position, rank ORDER BY scheduled_at, tid) AS turn
            FROM (
                SELECT job.ctid AS tid, scheduled_at, wanted.position,
                    greatest({rank}, wanted.first_rank) AS rank, {input_bytes} AS bytes
                FROM {schema}.job JOIN wanted ON wanted.type = job.type
                WHERE (SELECT bytes FROM total) > %(max_bytes)s
                    AND job.ctid = ANY (ARRAY(SELECT tid FROM locked UNION ALL SELECT tid FROM topup))
            ) AS every
        ) AS turns
    ) AS queue
    WHERE {fits}
),

-- name: started_events
-- Writes the events of the jobs in `claimed`, many in a row of the log.
{insert_events}
    SELECT 'started', 'running', chain_index, type, chain_type, attempt, %(holder)s, NULL,
        {event_arrays}
    FROM (
        SELECT *, row_number() OVER () AS place FROM claimed
        WHERE {logs_all}
    ) AS entry
    GROUP BY place / {events_a_row}, chain_index, type, chain_type, attempt ORDER BY min(place)

-- name: key_walk
-- A clause of the claims whose keys take turns: the best job of each key, for the types of `wanted` that have a cursor.
walk AS (
    SELECT type, position, cursor, cursor COLLATE "C" AS key, 1 AS round, 0 AS visited, NULL::tid AS tid, NULL::int AS rank,
        NULL::timestamptz AS scheduled_at
    FROM wanted WHERE cursor IS NOT NULL
    UNION ALL
    SELECT walk.type, walk.position, walk.cursor, next.key, next.round, walk.visited + 1, next.tid, next.rank, next.scheduled_at
    FROM walk
    CROSS JOIN LATERAL (
        (SELECT limit_key AS key, walk.round, job.ctid AS tid, {rank} AS rank, scheduled_at
         FROM {schema}.job
         WHERE job.type = walk.type AND status = 'ready' AND limit_key > walk.key
         ORDER BY limit_key, {rank}, scheduled_at LIMIT 1)
        UNION ALL
        (SELECT '', 2, free.*
         FROM (VALUES (1)) AS one
         LEFT JOIN LATERAL (
             SELECT job.ctid, {rank}, scheduled_at
             FROM {schema}.job
             WHERE job.type = walk.type AND status = 'ready' AND limit_key IS NULL
             ORDER BY {rank}, scheduled_at LIMIT 1
         ) AS free ON true
         WHERE walk.round = 1)
        LIMIT 1
    ) AS next
    WHERE walk.visited <= %(limit)s AND (next.round = 1 OR next.key <= walk.cursor)
)

-- name: promoted_type
-- A clause of the claims of one type whose keys take turns: its scheduled jobs that have become due become ready.
promoted AS (
    UPDATE {schema}.job
    SET status = 'ready'
    WHERE ctid = ANY (ARRAY(
        SELECT job.ctid
        FROM {schema}.job
        WHERE job.type || '' = %(type)s AND status = 'scheduled' AND scheduled_at <= statement_timestamp()
            AND NOT EXISTS (SELECT FROM {schema}.paused_type WHERE paused_type.type = %(type)s)
        ORDER BY scheduled_at LIMIT %(promoted)s FOR UPDATE SKIP LOCKED
    ))
    RETURNING id
)
