-- name: start_one
-- Starts one chain that has only an id and an input and is due now, as most starts are. Without arrays to unpack it
-- takes the server a sixth less time than start_uniform.
WITH written AS (
    INSERT INTO {schema}.job
        (id, type, chain_id, chain_type, chain_status, status, priority, created_at, scheduled_at, has_dependents, input,
         trace_context, limit_key, result_ttl)
    SELECT %(id)s::text, %(type)s::text, %(id)s::text, %(type)s::text, 'open', 'ready', %(priority)s::int, at, at,
        %(awaited)s::bool, %(input)s::jsonb, %(trace_context)s::text, %(limit_key)s::text, %(result_ttl)s::float8
    FROM (SELECT clock_timestamp() + %(before)s::int * interval '1 microsecond' AS at OFFSET 0) AS now
    RETURNING id, type, status, created_at, scheduled_at
),
event AS (
    {insert_event}
    SELECT 'created', status, id, id, 0, type, type, 0, scheduled_at, NULL, NULL, NULL
    FROM written
    WHERE {event_level:%(type)s::text} = 'all'
)
SELECT id, type, status, created_at FROM written

-- name: start_uniform
-- Starts chains that have only an id and an input and are due now. Their arrays are read in half the time of the JSON
-- rows of start_jobs.
WITH written AS (
    INSERT INTO {schema}.job
        (id, type, chain_id, chain_type, chain_status, status, priority, created_at, scheduled_at, has_dependents, input,
         trace_context, limit_key, result_ttl)
    SELECT id, %(type)s::text, id, %(type)s::text, 'open', 'ready', %(priority)s::int, at, at, %(awaited)s::bool, input,
        %(trace_context)s::text, %(limit_key)s::text, %(result_ttl)s::float8
    FROM (
        -- Each job gets a time of its own, so that the jobs of one call are claimed in order; `before` jobs are in
        -- earlier statements.
        SELECT id, input, clock_timestamp() + (%(before)s::int + place - 1) * interval '1 microsecond' AS at
        FROM ROWS FROM (unnest(%(ids)s::text[], %(inputs)s::jsonb[])) WITH ORDINALITY AS given (id, input, place)
    ) AS new
    RETURNING id, type, status, created_at, scheduled_at
),
event AS (
    {insert_events}
    SELECT 'created', 'ready', 0, %(type)s::text, %(type)s::text, 0, NULL, NULL, array_agg(id), NULL, array_agg(scheduled_at), NULL
    FROM (
        SELECT id, scheduled_at, row_number() OVER () AS place FROM written
        WHERE {event_level:%(type)s::text} = 'all'
    ) AS entry
    GROUP BY place / {events_a_row} ORDER BY min(place)
)
SELECT id, type, status, created_at FROM written

-- name: start_jobs
-- Starts chains of any kind.
WITH written AS (
    INSERT INTO {schema}.job
        (id, type, chain_id, chain_type, chain_status, status, priority, created_at, scheduled_at, has_dependents, input,
         trace_context, deduplication_key, limit_key, result_ttl, attributes, max_attempts)
    SELECT id, type, id, type, 'open', CASE WHEN due.at > written.at THEN 'scheduled' ELSE 'ready' END,
        priority, written.at, due.at, awaited, coalesce(input, 'null'), trace_context, deduplication_key, limit_key,
        result_ttl, attributes, max_attempts
    FROM ROWS FROM (json_to_recordset(%(jobs)s::json)
        AS (id text, type text, priority int, delay float8, moment timestamptz, awaited bool, input jsonb,
            trace_context text, deduplication_key text, limit_key text, result_ttl float8, attributes jsonb,
            max_attempts int))
        WITH ORDINALITY
        AS new (id, type, priority, delay, moment, awaited, input, trace_context, deduplication_key, limit_key, result_ttl,
            attributes, max_attempts, place)
    -- Each job gets a time of its own, so that the jobs of one call are claimed in order; `before` jobs are in earlier
    -- statements.
    CROSS JOIN LATERAL (
        SELECT clock_timestamp() + (%(before)s::int + place - 1) * interval '1 microsecond' AS at
    ) AS written
    CROSS JOIN LATERAL (
        SELECT greatest(coalesce(moment, written.at + delay * interval '1 second'), written.at) AS at
    ) AS due
    RETURNING id, type, status, created_at, scheduled_at, attributes
),
event AS (
    {insert_events}
    SELECT 'created', status, 0, type, type, 0, NULL, NULL, array_agg(id), NULL, array_agg(scheduled_at), NULL
    FROM (
        SELECT *, row_number() OVER () AS place FROM written
        WHERE {event_level:written.type} = 'all'
    ) AS entry
    GROUP BY place / {events_a_row}, status, type ORDER BY min(place)
){attribute_index}
SELECT id, type, status, created_at FROM written

-- name: start_if_absent
-- Starts the chains whose ids do not exist. It waits for transactions that are writing the same ids.
WITH written AS (
    INSERT INTO {schema}.job
        (id, type, chain_id, chain_type, chain_status, status, priority, created_at, scheduled_at, has_dependents, input,
         trace_context, deduplication_key, limit_key, result_ttl, attributes, max_attempts)
    SELECT id, type, id, type, 'open', CASE WHEN due.at > written.at THEN 'scheduled' ELSE 'ready' END,
        priority, written.at, due.at, awaited, coalesce(input, 'null'), trace_context, deduplication_key, limit_key,
        result_ttl, attributes, max_attempts
    FROM ROWS FROM (json_to_recordset(%(jobs)s::json)
        AS (id text, type text, priority int, delay float8, moment timestamptz, awaited bool, input jsonb,
            trace_context text, deduplication_key text, limit_key text, result_ttl float8, attributes jsonb,
            max_attempts int))
        WITH ORDINALITY
        AS new (id, type, priority, delay, moment, awaited, input, trace_context, deduplication_key, limit_key, result_ttl,
            attributes, max_attempts, place)
    -- Each job gets a time of its own, so that the jobs of one call are claimed in order.
    CROSS JOIN LATERAL (
        SELECT clock_timestamp() + (place - 1) * interval '1 microsecond' AS at
    ) AS written
    CROSS JOIN LATERAL (
        SELECT greatest(coalesce(moment, written.at + delay * interval '1 second'), written.at) AS at
    ) AS due
    ORDER BY id COLLATE "C"
    ON CONFLICT (id) DO NOTHING
    RETURNING id, type, status, created_at, scheduled_at, attributes
),
event AS (
    {insert_event}
    SELECT 'created', status, id, id, 0, type, type, 0, scheduled_at, NULL, NULL, NULL
    FROM written
    WHERE {event_level:written.type} = 'all'
){attribute_index}
SELECT id, type, status, created_at FROM written

-- name: lock_deduplication_keys
-- Locks deduplication keys until the transaction ends; another start of the same key waits for its outcome. A row of
-- this table is only a lock. Duplicates are looked up by a later statement, whose snapshot is newer.
INSERT INTO {schema}.deduplication (type, key)
SELECT type, key FROM unnest(%(types)s::text[], %(keys)s::text[]) AS params (type, key)
ORDER BY type COLLATE "C", key COLLATE "C"
ON CONFLICT (type, key) DO UPDATE SET taken = deduplication.taken + 1
RETURNING type

-- name: find_duplicates
-- Finds the newest chain that each start with a deduplication key is a duplicate of. Open chains have their own index,
-- so a key with a long history costs no more than a new one. statement_timestamp() is stable, so it can bound the scan,
-- and the statement waits for no lock. ORDER BY names exactly the columns of these indexes, so the planner cannot
-- choose another one.
WITH params AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(keys)s::json)
        AS k (place int, type text, key text, only_open bool, seconds float8, excluding jsonb)
)
SELECT params.place, found.id, found.type, found.status, found.created_at, found.chain_status
FROM params
CROSS JOIN LATERAL (
    (SELECT id, type, status, created_at, chain_status FROM {schema}.job
     WHERE params.only_open AND job.type = params.type AND deduplication_key = params.key AND chain_status = 'open'
        AND created_at >= coalesce(statement_timestamp() - params.seconds * interval '1 second', '-infinity')
        AND NOT params.excluding ? job.id
     ORDER BY type DESC, deduplication_key DESC, created_at DESC LIMIT 1)
    UNION ALL
    (SELECT id, type, status, created_at, chain_status FROM {schema}.job
     WHERE NOT params.only_open AND job.type = params.type AND deduplication_key = params.key
        AND (expires_at IS NULL OR expires_at > statement_timestamp())
        AND created_at >= coalesce(statement_timestamp() - params.seconds * interval '1 second', '-infinity')
        AND NOT params.excluding ? job.id
     ORDER BY type DESC, deduplication_key DESC, created_at DESC LIMIT 1)
) AS found

-- name: debounce
-- Gives the waiting jobs of deduplication keys, which the caller has locked, the inputs and due times of newer starts.
-- The function may write inputs, which clients may not.
SELECT place, id, type, status, created_at FROM {schema}.debounce(%(starts)s::json)

-- name: find_chains_by_id
-- Reads jobs by id, and whether they are chains that have expired.
SELECT {existing_columns}
FROM {schema}.job WHERE id = ANY (%(ids)s::text[])

-- name: lock_in_order
-- Locks jobs, and chains by their first job, oldest first, and marks the chains that jobs are about to wait for.
-- Whoever closes a chain takes the same lock first, so neither can miss the other. The jobs that wait for chains which
-- are about to close (`closing`) are locked as well: they may be older than these chains.
WITH locked AS MATERIALIZED (
    SELECT id, chain_index FROM {schema}.job
    WHERE id = ANY (%(rows)s::text[] || ARRAY(
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
    WHERE job.id = locked.id AND locked.id = ANY (%(awaited)s::text[]) AND NOT job.has_dependents
)
SELECT id FROM locked WHERE chain_index = 0

-- name: add_blockers
-- Makes jobs wait for chains that this transaction has locked; chains that have closed already count as closed. A job
-- that waits again keeps its blockers: new ones are added after them, and an existing one counts again if its chain was
-- reopened.
WITH params AS MATERIALIZED (
    SELECT b.*, chain.chain_status <> 'open' AS closed, entry.tid, entry.closed AS was_closed
    FROM json_to_recordset(%(blockers)s::json) AS b (job_id text, chain_id text, position int)
    JOIN {schema}.job AS chain ON chain.id = b.chain_id
    LEFT JOIN LATERAL (
        SELECT ctid AS tid, closed FROM {schema}.job_blocker
        WHERE blocker_chain_id = b.chain_id AND job_blocker.job_id = b.job_id OFFSET 0
    ) AS entry ON true
),
places AS MATERIALIZED (
    SELECT waiting.job_id, coalesce(last.position + 1, 0) AS first
    FROM (SELECT DISTINCT job_id FROM params) AS waiting
    LEFT JOIN LATERAL (
        SELECT position FROM {schema}.job_blocker WHERE job_blocker.job_id = waiting.job_id
        ORDER BY position DESC LIMIT 1
    ) AS last ON true
),
added AS (
    INSERT INTO {schema}.job_blocker (job_id, blocker_chain_id, position, closed)
    SELECT params.job_id, params.chain_id, places.first + params.position, params.closed
    FROM params JOIN places ON places.job_id = params.job_id
    WHERE params.tid IS NULL
    ON CONFLICT (blocker_chain_id, job_id) DO NOTHING
    RETURNING job_id, closed
),
reopened AS (
    UPDATE {schema}.job_blocker SET closed = false
    WHERE ctid = ANY (ARRAY(SELECT tid FROM params WHERE was_closed AND NOT params.closed))
    RETURNING job_id
),
counted AS (
    SELECT job_id, sum(total) AS total, sum(open) AS open
    FROM (
        SELECT job_id, 1 AS total, (NOT closed)::int AS open FROM added
        UNION ALL
        SELECT job_id, 0, 1 FROM reopened
    ) AS entry
    GROUP BY job_id
),
waiting AS (
    UPDATE {schema}.job
    SET blocker_count = blocker_count + counted.total,
        open_blockers = open_blockers + counted.open,
        status = CASE WHEN open_blockers + counted.open > 0 THEN 'blocked' ELSE status END
    FROM counted
    WHERE job.id = counted.job_id
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at
),
event AS (
    {insert_event}
    SELECT 'blocked', {event_columns}, NULL, NULL
    FROM waiting
    WHERE status = 'blocked'
        AND {event_level:waiting.type} = 'all'
)
SELECT id, status FROM waiting

-- name: notify_after_commit
-- Sends a notification. Nobody needs it after a crash, so its commit does not wait for the disk.
SELECT set_config('synchronous_commit', 'off', true), pg_notify(%(channel)s, %(text)s)
