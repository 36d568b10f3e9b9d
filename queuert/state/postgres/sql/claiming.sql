-- name: claim
-- Leases the best due jobs of the given types, up to the limit.
--
-- It first scans the head of each type without locks, to learn how many of each are among the best. Then it locks just
-- those and skips what others have locked; what is missing then (`topup`) comes from any type. Each step reads at
-- most `limit` index entries a type, whatever the backlog. Paused types are left out. statement_timestamp() is stable,
-- so it can bound the index scan; leases start at clock_timestamp(), since the statement may have waited.
--
-- Of the locked jobs it takes the best whose inputs fit into `max_bytes`, at least one. It measures the stored size,
-- which does not read inputs that are stored apart, and estimates the length of compressed ones (see claiming.py).
-- Among jobs of one rank, the types take turns in the order given, the longest due first.
--
-- The scan of each type begins at a rank and a time: at the head of the index, unless an old snapshot keeps dead
-- entries there (see ClaimCursors in claiming.py), or only jobs of a worse rank are wanted. Scheduled jobs have no index by rank:
-- they count as of the first rank at best. Each row says how long the scan took.
WITH wanted AS MATERIALIZED (
    SELECT type, lease_seconds, coalesce(first_rank, '-2147483648') AS first_rank, coalesce(first_time, '-infinity') AS first_time,
        position
    FROM unnest(%(types)s::text[], %(leases)s::float8[], %(first_ranks)s::int[], %(first_times)s::timestamptz[])
        WITH ORDINALITY AS w (type, lease_seconds, first_rank, first_time, position)
),
-- Materialized separately, since the plan of the update depends on how many types are expected there.
unpaused AS MATERIALIZED (
    SELECT wanted.type, wanted.first_rank, wanted.first_time, wanted.position FROM wanted
    WHERE NOT EXISTS (SELECT FROM {schema}.paused_type WHERE paused_type.type = wanted.type)
),
best AS MATERIALIZED (
    SELECT unpaused.position, head.due
    FROM unpaused
    CROSS JOIN LATERAL (
        SELECT due, rank, row_number() OVER (PARTITION BY rank ORDER BY scheduled_at) AS turn
        FROM (
            (SELECT false AS due, {rank} AS rank, scheduled_at
             FROM {schema}.job
             WHERE job.type = unpaused.type AND status = 'ready'
                 AND ({rank}, scheduled_at) >= (unpaused.first_rank, unpaused.first_time)
             ORDER BY {rank}, scheduled_at LIMIT %(limit)s)
            UNION ALL
            (SELECT true, greatest({rank}, unpaused.first_rank), scheduled_at
             FROM {schema}.job
             WHERE job.type || '' = unpaused.type AND status = 'scheduled' AND scheduled_at <= statement_timestamp()
             ORDER BY scheduled_at LIMIT %(limit)s)
        ) AS candidate
    ) AS head
    ORDER BY head.rank, head.turn, unpaused.position
    LIMIT %(limit)s
),
shares AS (
    SELECT unpaused.type, unpaused.first_rank, unpaused.first_time, share.ready, share.due
    FROM (
        SELECT position, count(*) FILTER (WHERE NOT due) AS ready, count(*) FILTER (WHERE due) AS due
        FROM best GROUP BY position
    ) AS share
    JOIN unpaused USING (position)
),
scan_time AS MATERIALIZED (
    -- The count comes first, so that the clock is read after the scan.
    SELECT count(*) AS jobs, extract(epoch FROM clock_timestamp() - statement_timestamp())::float8 AS seconds FROM best
),
locked AS MATERIALIZED (
    SELECT ready.*
    FROM shares
    CROSS JOIN LATERAL (
        SELECT job.ctid AS tid,
            pg_column_size(input) * CASE WHEN pg_column_compression(input) IS NULL THEN 1 ELSE %(expansion)s::float8 END AS bytes
        FROM {schema}.job
        WHERE job.type = shares.type AND status = 'ready'
            AND ({rank}, scheduled_at) >= (shares.first_rank, shares.first_time)
        ORDER BY {rank}, scheduled_at LIMIT shares.ready FOR UPDATE SKIP LOCKED
    ) AS ready
    UNION ALL
    SELECT due.*
    FROM shares
    CROSS JOIN LATERAL (
        SELECT job.ctid,
            pg_column_size(input) * CASE WHEN pg_column_compression(input) IS NULL THEN 1 ELSE %(expansion)s::float8 END
        FROM {schema}.job
        WHERE job.type || '' = shares.type AND status = 'scheduled' AND scheduled_at <= statement_timestamp()
        ORDER BY scheduled_at LIMIT shares.due FOR UPDATE SKIP LOCKED
    ) AS due
),
locked_size AS MATERIALIZED (
    SELECT count(*) AS jobs, coalesce(sum(bytes), 0) AS bytes FROM locked
),
missing AS (
    SELECT scan_time.jobs - locked_size.jobs AS number FROM scan_time, locked_size
),
topup AS MATERIALIZED (
    SELECT other.*
    FROM missing
    CROSS JOIN unpaused
    CROSS JOIN LATERAL (
        SELECT job.ctid AS tid,
            pg_column_size(input) * CASE WHEN pg_column_compression(input) IS NULL THEN 1 ELSE %(expansion)s::float8 END AS bytes
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
                    greatest({rank}, wanted.first_rank) AS rank,
                    pg_column_size(input) * CASE WHEN pg_column_compression(input) IS NULL THEN 1 ELSE %(expansion)s::float8 END AS bytes
                FROM {schema}.job JOIN wanted ON wanted.type = job.type
                WHERE (SELECT bytes FROM total) > %(max_bytes)s
                    AND job.ctid = ANY (ARRAY(SELECT tid FROM locked UNION ALL SELECT tid FROM topup))
            ) AS every
        ) AS turns
    ) AS queue
    WHERE upto <= %(max_bytes)s OR upto = bytes
),
claimed AS (
    UPDATE {schema}.job
    SET status = 'running',
        attempt = attempt + 1,
        started_at = clock_timestamp(),
        lease_expires_at = clock_timestamp() + wanted.lease_seconds * interval '1 second',
        lease_token = %(token)s::uuid,
        holder = %(holder)s
    FROM wanted
    WHERE job.ctid = ANY (CASE WHEN (SELECT bytes FROM total) > %(max_bytes)s THEN ARRAY(SELECT tid FROM fitting)
                               ELSE ARRAY(SELECT tid FROM locked UNION ALL SELECT tid FROM topup) END)
        AND job.type = wanted.type
    RETURNING job.id, job.type, job.chain_id, job.chain_type, job.chain_index, job.priority, job.attempt,
        job.uncounted, job.lease_expirations, job.blocker_count, job.has_dependents, job.input::text,
        job.created_at, job.scheduled_at, job.started_at, wanted.lease_seconds, job.trace_context,
        job.result_ttl, job.attempt_trace_context,
        CASE WHEN pg_column_compression(job.input) IS NOT NULL THEN pg_column_size(job.input) END AS packed
),
event AS (
    {insert_events}
    SELECT 'started', 'running', chain_index, type, chain_type, attempt, %(holder)s, NULL,
        {event_arrays}
    FROM (
        SELECT *, row_number() OVER () AS place FROM claimed
        WHERE {logs_all}
    ) AS entry
    GROUP BY place / {events_a_row}, chain_index, type, chain_type, attempt ORDER BY min(place)
)
SELECT id, type, chain_id, chain_type, chain_index, priority, attempt, uncounted, lease_expirations, blocker_count,
    has_dependents, input, created_at, scheduled_at, started_at, lease_seconds, trace_context,
    result_ttl, attempt_trace_context, packed, (SELECT seconds FROM scan_time)
FROM claimed

-- name: next_due
-- Reads the seconds until the first job of these types is due, without the paused types: one index entry a type and
-- status. Any ready job would do; ORDER BY makes the planner use the index instead of scanning the table for the first
-- match.
SELECT CASE WHEN count(*) > 0
    THEN greatest(extract(epoch FROM min(head.scheduled_at) - clock_timestamp()), 0)::float8 END
FROM (
    SELECT params.type FROM unnest(%(types)s::text[]) AS params (type)
    WHERE NOT EXISTS (SELECT FROM {schema}.paused_type WHERE paused_type.type = params.type)
) AS wanted
CROSS JOIN LATERAL (
    (SELECT to_timestamp(0) AS scheduled_at FROM {schema}.job
     WHERE job.type = wanted.type AND status = 'ready' ORDER BY {rank}, scheduled_at LIMIT 1)
    UNION ALL
    (SELECT scheduled_at FROM {schema}.job
     WHERE job.type || '' = wanted.type AND status = 'scheduled' ORDER BY scheduled_at LIMIT 1)
) AS head

-- name: release
-- Releases jobs that were claimed and not started; their attempt does not count. Rows that another transaction has
-- locked are skipped, because the worker's next claim waits for this.
WITH free AS MATERIALIZED (
    SELECT job.id
    FROM unnest(%(ids)s::text[], %(tokens)s::uuid[]) AS params (id, token)
    JOIN {schema}.job ON job.id = params.id AND job.lease_token = params.token AND job.lease_expires_at IS NOT NULL
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
released AS (
    UPDATE {schema}.job
    SET status = 'ready', attempt = attempt - 1, lease_token = NULL, lease_expires_at = NULL
    FROM free
    WHERE job.id = free.id
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt + 1 AS attempt,
        job.scheduled_at, job.started_at, job.holder
),
event AS (
    {insert_event}
    SELECT 'released', {event_columns}, holder, NULL
    FROM released
    WHERE {event_level:released.type} = 'all'
)
SELECT id FROM released

-- name: release_claim
-- Releases all jobs of one claim, none of which was started; they are found by the claim's token among the running jobs
-- of its types. Rows that another transaction has locked are skipped and counted, because the worker's next claim waits
-- for this: the worker repeats the call for them.
WITH free AS MATERIALIZED (
    SELECT id FROM {schema}.job
    WHERE status = 'running' AND type = ANY (%(types)s::text[]) AND lease_token = %(token)s::uuid
    FOR NO KEY UPDATE SKIP LOCKED
),
released AS (
    UPDATE {schema}.job
    SET status = 'ready', attempt = attempt - 1, lease_token = NULL, lease_expires_at = NULL
    FROM free
    WHERE job.id = free.id
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt + 1 AS attempt,
        job.scheduled_at, job.started_at, job.holder
),
event AS (
    {insert_event}
    SELECT 'released', {event_columns}, holder, NULL
    FROM released
    WHERE {event_level:released.type} = 'all'
)
SELECT (SELECT count(*) FROM released),
    (SELECT count(*) FROM {schema}.job
     WHERE status = 'running' AND type = ANY (%(types)s::text[]) AND lease_token = %(token)s::uuid)
    - (SELECT count(*) FROM free)

-- name: renew
-- Renews the leases that are still held, and stores the progress of their attempts. Rows that another transaction has
-- locked are skipped: one locked job must not cost the others their leases, and no order of locks is needed. No
-- index has the end of the lease, so the new version of the row is heap-only.
--
-- The lease of a row that was skipped is extended in a table of its own, which the reaper reads: the row may stay
-- locked for longer than the lease lasts, and the reaper may be the first to lock it afterwards.
WITH free AS MATERIALIZED (
    SELECT job.id, params.seconds, params.progress
    FROM unnest(%(ids)s::text[], %(tokens)s::uuid[], %(seconds)s::float8[], %(progress)s::text[])
        AS params (id, token, seconds, progress)
    JOIN {schema}.job ON job.id = params.id AND job.lease_token = params.token AND job.lease_expires_at IS NOT NULL
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
extended AS (
    INSERT INTO {schema}.lease_extension (job_id, lease_token, expires_at)
    SELECT DISTINCT ON (job.id) job.id, job.lease_token, clock_timestamp() + params.seconds * interval '1 second'
    FROM unnest(%(ids)s::text[], %(tokens)s::uuid[], %(seconds)s::float8[]) AS params (id, token, seconds)
    JOIN {schema}.job ON job.id = params.id AND job.lease_token = params.token AND job.lease_expires_at IS NOT NULL
    WHERE (SELECT count(*) FROM free) < cardinality(%(ids)s::text[]) AND params.id NOT IN (SELECT id FROM free)
    ORDER BY job.id
    ON CONFLICT (job_id) DO UPDATE SET lease_token = excluded.lease_token, expires_at = excluded.expires_at
)
UPDATE {schema}.job
SET lease_expires_at = clock_timestamp() + free.seconds * interval '1 second',
    progress = coalesce(free.progress, job.progress)
FROM free
WHERE job.id = free.id
RETURNING job.id, job.lease_token::text

-- name: lock_limits
-- Makes claims of types with limits run one after the other, until the transaction ends. The locks are taken in one
-- order, so that two claims which share several types cannot deadlock. It is a statement of its own because counting
-- needs a newer snapshot.
SELECT pg_advisory_xact_lock(key)
FROM (
    SELECT DISTINCT hashtextextended('{schema} limits of ' || type, 0) AS key
    FROM unnest(%(types)s::text[]) AS limited (type)
    ORDER BY key OFFSET 0
) AS locks

-- name: promote_due
-- Makes scheduled jobs ready whose time has come, the longest due first, so that they are in the indexes by key.
UPDATE {schema}.job
SET status = 'ready'
WHERE ctid = ANY (ARRAY(
    SELECT due.tid
    FROM unnest(%(types)s::text[]) AS limited (type)
    CROSS JOIN LATERAL (
        SELECT job.ctid AS tid
        FROM {schema}.job
        WHERE job.type || '' = limited.type AND status = 'scheduled' AND scheduled_at <= statement_timestamp()
        ORDER BY scheduled_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS due
))
RETURNING id

-- name: select_admissible
-- Selects the ready jobs of the types with limits that the limits admit and that are among the best of all types; for
-- types without limits it only counts. Among jobs of one rank, types take turns. No job is of a better rank than
-- `first_rank`. It also returns where the walk over the keys of a type ended, if it did not reach its beginning.
--
-- It runs under the locks of lock_limits, so running jobs and recorded starts are complete. The index by key is walked
-- from key to key, beginning after `cursor`: a key costs one entry, however many of its jobs wait. Of the keys with
-- free slots, those with the best heads hold the best jobs, so only these are read further.
WITH RECURSIVE params AS MATERIALIZED (
    SELECT a.*, per_key IS NOT NULL OR starts IS NOT NULL AS by_key,
        statement_timestamp() - seconds * interval '1 second' AS since
    FROM unnest(%(limited)s::text[], %(concurrencies)s::int[], %(per_keys)s::int[], %(starts)s::int[],
                %(windows)s::float8[], %(cursors)s::text[])
        AS a (type, concurrency, per_key, starts, seconds, cursor)
    WHERE NOT EXISTS (SELECT FROM {schema}.paused_type WHERE paused_type.type = a.type)
),
-- All running jobs, of which there are at most as many as slots: a scan for each key would be a worse plan.
running AS MATERIALIZED (
    SELECT params.type, of_key.*
    FROM params
    CROSS JOIN LATERAL (
        SELECT limit_key AS key, count(*) AS count
        FROM {schema}.job
        WHERE job.type = params.type AND status = 'running'
        GROUP BY limit_key
    ) AS of_key
),
limited AS MATERIALIZED (
    SELECT params.*, least(%(limit)s, concurrency - coalesce(
        (SELECT sum(count) FROM running WHERE running.type = params.type), 0)) AS free
    FROM params
),
walk AS (
    SELECT type, cursor, cursor COLLATE "C" AS key, 1 AS round, 0 AS visited FROM limited WHERE by_key AND free > 0
    UNION ALL
    SELECT walk.type, walk.cursor, next.key, next.round, walk.visited + 1
    FROM walk
    CROSS JOIN LATERAL (
        (SELECT limit_key AS key, walk.round
         FROM {schema}.job
         WHERE job.type = walk.type AND status = 'ready' AND limit_key > walk.key
         ORDER BY limit_key LIMIT 1)
        UNION ALL
        (SELECT limit_key, 2
         FROM {schema}.job
         WHERE job.type = walk.type AND status = 'ready' AND limit_key IS NOT NULL AND walk.round = 1
         ORDER BY limit_key LIMIT 1)
        ORDER BY round LIMIT 1
    ) AS next
    WHERE walk.visited < %(most_keys)s AND (next.round = 1 OR next.key <= walk.cursor)
),
visited AS (
    -- Grouped instead of joined, since a join could compare each with each.
    SELECT type, key, sum(count) AS running
    FROM (
        SELECT type, key, 0 AS count, visited FROM walk
        UNION ALL
        SELECT type, key, count, 0 FROM running
    ) AS both_of_them
    GROUP BY type, key
    HAVING max(visited) > 0
),
slots AS MATERIALIZED (
    SELECT visited.type, visited.key, limited.free,
        least(limited.per_key - visited.running, limited.starts - CASE WHEN limited.starts IS NOT NULL THEN (
            SELECT count(*) FROM (
                SELECT FROM {schema}.limit_start
                WHERE limit_start.type = visited.type AND limit_key = visited.key AND started_at > limited.since
                LIMIT limited.starts
            ) AS started
        ) END) AS free_of_key
    FROM visited JOIN limited USING (type)
),
heads AS (
    SELECT slots.*, row_number() OVER (PARTITION BY slots.type ORDER BY head.rank, head.scheduled_at) AS place
    FROM slots
    CROSS JOIN LATERAL (
        SELECT {rank} AS rank, scheduled_at
        FROM {schema}.job
        WHERE job.type = slots.type AND limit_key = slots.key AND status = 'ready' AND id <> ALL (%(passed_over)s::text[])
            AND {rank} >= %(first_rank)s::int
        ORDER BY {rank}, scheduled_at LIMIT 1
    ) AS head
    WHERE slots.free_of_key > 0
),
found AS (
    SELECT heads.type, heads.free, best.*
    FROM heads
    CROSS JOIN LATERAL (
        SELECT {rank} AS rank, scheduled_at, id
        FROM {schema}.job
        WHERE job.type = heads.type AND limit_key = heads.key AND status = 'ready' AND id <> ALL (%(passed_over)s::text[])
            AND {rank} >= %(first_rank)s::int
        ORDER BY {rank}, scheduled_at
        LIMIT least(heads.free, heads.free_of_key)
    ) AS best
    WHERE heads.place <= heads.free
    UNION ALL
    -- Jobs without a key: they share one rate.
    SELECT limited.type, limited.free, best.*
    FROM limited
    CROSS JOIN LATERAL (
        SELECT {rank} AS rank, scheduled_at, id
        FROM {schema}.job
        WHERE job.type = limited.type AND limit_key IS NULL AND status = 'ready' AND id <> ALL (%(passed_over)s::text[])
            AND {rank} >= %(first_rank)s::int
        ORDER BY {rank}, scheduled_at
        LIMIT greatest(0, least(limited.free, limited.starts - CASE WHEN limited.starts IS NOT NULL THEN (
            SELECT count(*) FROM (
                SELECT FROM {schema}.limit_start
                WHERE limit_start.type = limited.type AND limit_key = '' AND started_at > limited.since
                LIMIT limited.starts
            ) AS started
        ) END))
    ) AS best
    WHERE limited.by_key
    UNION ALL
    -- Keys do not matter for these limits.
    SELECT limited.type, limited.free, best.*
    FROM limited
    CROSS JOIN LATERAL (
        SELECT {rank} AS rank, scheduled_at, id
        FROM {schema}.job
        WHERE job.type = limited.type AND status = 'ready' AND id <> ALL (%(passed_over)s::text[])
            AND {rank} >= %(first_rank)s::int
        ORDER BY {rank}, scheduled_at LIMIT greatest(0, limited.free)
    ) AS best
    WHERE NOT limited.by_key
),
admitted AS (
    SELECT *, row_number() OVER (PARTITION BY type ORDER BY rank, scheduled_at, id) AS place,
        row_number() OVER (PARTITION BY type, rank ORDER BY scheduled_at, id) AS turn
    FROM found
),
others AS (
    SELECT other.type, head.rank, row_number() OVER (PARTITION BY other.type, head.rank ORDER BY head.scheduled_at) AS turn
    FROM unnest(%(others)s::text[]) AS other (type)
    CROSS JOIN LATERAL (
        (SELECT {rank} AS rank, scheduled_at
         FROM {schema}.job
         WHERE job.type = other.type AND status = 'ready'
             AND {rank} >= %(first_rank)s::int
         ORDER BY {rank}, scheduled_at LIMIT %(limit)s)
        UNION ALL
        (SELECT greatest({rank}, %(first_rank)s::int), scheduled_at
         FROM {schema}.job
         WHERE job.type || '' = other.type AND status = 'scheduled' AND scheduled_at <= statement_timestamp()
         ORDER BY scheduled_at LIMIT %(limit)s)
    ) AS head
    WHERE NOT EXISTS (SELECT FROM {schema}.paused_type WHERE paused_type.type = other.type)
),
best AS (
    SELECT id FROM (
        SELECT type, rank, turn, id FROM admitted WHERE place <= free
        UNION ALL
        SELECT type, rank, turn, NULL FROM others
    ) AS every
    ORDER BY rank, turn, array_position(%(types)s::text[], type) LIMIT %(limit)s
)
SELECT id, NULL AS type, NULL AS key FROM best
UNION ALL
SELECT NULL, type, key FROM walk WHERE visited = %(most_keys)s

-- name: claim_admitted
-- Leases the ready jobs that were admitted, skips what others have locked, and records the starts of types with a
-- rate. As in `claim`, it takes the best whose inputs fit into `max_bytes`, at least one; every row says whether all
-- did.
WITH wanted AS MATERIALIZED (
    SELECT * FROM unnest(%(types)s::text[], %(leases)s::float8[]) AS w (type, lease_seconds)
),
locked AS MATERIALIZED (
    SELECT ctid AS tid, status, {rank} AS rank, scheduled_at,
        pg_column_size(input) * CASE WHEN pg_column_compression(input) IS NULL THEN 1 ELSE %(expansion)s::float8 END AS bytes
    FROM {schema}.job WHERE id = ANY (%(ids)s::text[]) FOR UPDATE SKIP LOCKED
),
fitting AS MATERIALIZED (
    SELECT tid, bytes, sum(bytes) OVER (ORDER BY rank, scheduled_at, tid ROWS UNBOUNDED PRECEDING) AS upto
    FROM locked
    WHERE status = 'ready'
),
claimed AS (
    UPDATE {schema}.job
    SET status = 'running',
        attempt = attempt + 1,
        started_at = clock_timestamp(),
        lease_expires_at = clock_timestamp() + wanted.lease_seconds * interval '1 second',
        lease_token = %(token)s::uuid,
        holder = %(holder)s
    FROM wanted
    WHERE job.ctid = ANY (ARRAY(SELECT tid FROM fitting WHERE upto <= %(max_bytes)s OR upto = bytes)) AND job.type = wanted.type
    RETURNING job.id, job.type, job.chain_id, job.chain_type, job.chain_index, job.priority, job.attempt,
        job.uncounted, job.lease_expirations, job.blocker_count, job.has_dependents, job.input::text,
        job.created_at, job.scheduled_at, job.started_at, wanted.lease_seconds, job.trace_context, job.result_ttl,
        job.attempt_trace_context, CASE WHEN pg_column_compression(job.input) IS NOT NULL THEN pg_column_size(job.input) END AS packed, job.limit_key
),
counted AS (
    INSERT INTO {schema}.limit_start (started_at, type, limit_key)
    SELECT started_at, type, coalesce(limit_key, '') FROM claimed WHERE type = ANY (%(rated)s::text[])
),
event AS (
    {insert_events}
    SELECT 'started', 'running', chain_index, type, chain_type, attempt, %(holder)s, NULL,
        {event_arrays}
    FROM (
        SELECT *, row_number() OVER () AS place FROM claimed
        WHERE {event_level:claimed.type} = 'all'
    ) AS entry
    GROUP BY place / {events_a_row}, chain_index, type, chain_type, attempt ORDER BY min(place)
)
SELECT id, type, chain_id, chain_type, chain_index, priority, attempt, uncounted, lease_expirations, blocker_count,
    has_dependents, input, created_at, scheduled_at, started_at, lease_seconds, trace_context,
    result_ttl, attempt_trace_context, packed, (SELECT max(upto) > %(max_bytes)s FROM fitting) AS cut
FROM claimed

-- name: prune_rate_window
-- Deletes recorded starts that are older than the window of their type, oldest first, some at a time.
DELETE FROM {schema}.limit_start
WHERE ctid = ANY (ARRAY(
    SELECT old.tid
    FROM unnest(%(types)s::text[], %(windows)s::float8[], %(limits)s::int[]) AS rated (type, seconds, most)
    CROSS JOIN LATERAL (
        SELECT limit_start.ctid AS tid
        FROM {schema}.limit_start
        WHERE limit_start.type = rated.type
            AND started_at <= statement_timestamp() - rated.seconds * interval '1 second'
        ORDER BY started_at LIMIT rated.most FOR UPDATE SKIP LOCKED
    ) AS old
))
RETURNING type
