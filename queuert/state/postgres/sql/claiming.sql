-- name: claim
-- Leases the best due jobs of the given types, up to the limit.
--
-- It first scans the head of each type without locks, to learn how many of each are among the best. Then it locks just
-- those and skips what others have locked. Each step reads at most `limit` index entries a type, whatever the backlog.
-- Paused types are left out. statement_timestamp() is stable, so it can bound the index scan; leases start at
-- clock_timestamp(), since the statement may have waited.
--
-- `claim_many`, for many jobs, locks without that scan if only one type has jobs, and those are ready. It looks at one
-- job of each type to find out.
--
-- Neither claims jobs in the place of those that others have locked: `missing` says how many. Neither claims anything if
-- the inputs of the locked jobs exceed `max_bytes`: then `missing` is -1. `claim_rest` does both, at twice the steps,
-- which each execution has to set up. It locks what is missing of any type (`topup`). Of the locked jobs it takes the
-- best whose inputs fit into `max_bytes`, at least one unless the claim has `begun` with another statement.
--
-- The size of an input is its stored size, which is known without reading those that are stored apart, and the length
-- of compressed ones is estimated (see claiming.py). Among jobs of one rank, the types take turns in the order given, the
-- longest due first.
--
-- The scan of each type begins at a rank and a time: at the head of the index, unless an old snapshot keeps dead
-- entries there (see ClaimCursors in claiming.py), or only jobs of a worse rank are wanted. Scheduled jobs have no index by rank:
-- they count as of the first rank at best. There is at least one row. Each says how long the scan took.
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
),{find_one_type}
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
    ) AS head{unless_one_type}
    ORDER BY head.rank, head.turn, unpaused.position
    LIMIT %(limit)s
),
shares AS (
    SELECT unpaused.type, unpaused.first_rank, unpaused.first_time, share.ready, share.due
    FROM (
        SELECT position, count(*) FILTER (WHERE NOT due) AS ready, count(*) FILTER (WHERE due) AS due
        FROM best GROUP BY position
    ) AS share
    JOIN unpaused USING (position){or_one_type}
),
scan_time AS MATERIALIZED (
    -- The count comes first, so that the clock is read after the scan.
    SELECT count(*) AS jobs, extract(epoch FROM clock_timestamp() - statement_timestamp())::float8 AS seconds FROM best
),
locked AS MATERIALIZED (
    SELECT ready.*
    FROM shares
    CROSS JOIN LATERAL (
        SELECT job.ctid AS tid, {input_bytes} AS bytes
        FROM {schema}.job
        WHERE job.type = shares.type AND status = 'ready'
            AND ({rank}, scheduled_at) >= (shares.first_rank, shares.first_time)
        ORDER BY {rank}, scheduled_at LIMIT shares.ready FOR UPDATE SKIP LOCKED
    ) AS ready
    UNION ALL
    SELECT due.*
    FROM shares
    CROSS JOIN LATERAL (
        SELECT job.ctid, {input_bytes}
        FROM {schema}.job
        WHERE job.type || '' = shares.type AND status = 'scheduled' AND scheduled_at <= statement_timestamp()
        ORDER BY scheduled_at LIMIT shares.due FOR UPDATE SKIP LOCKED
    ) AS due
),
locked_size AS MATERIALIZED (
    SELECT count(*) AS jobs, coalesce(sum(bytes), 0) AS bytes FROM locked
),{topup}
claimed AS (
    UPDATE {schema}.job
    SET {lease}
    FROM wanted
    WHERE job.ctid = ANY ({chosen}) AND job.type = wanted.type
    RETURNING {claimed_job}
),
event AS (
    {started_events}
),
summary AS (
    SELECT scan_time.seconds, {missing} AS missing FROM scan_time, locked_size
)
SELECT {claimed_columns}, summary.seconds, summary.missing
FROM summary LEFT JOIN claimed ON true

-- name: claim_one_type
-- Leases the best ready jobs of one type, up to the limit, with a third of the clauses of `claim`: for a worker that has
-- nothing else to do and was told of the type. It locks as many as there are in place of those that others have locked,
-- so none is `missing`. There is at least one row, as of `claim`.
WITH wanted AS (
    SELECT %(lease)s::float8 AS lease_seconds
),
locked AS MATERIALIZED (
    SELECT job.ctid AS tid, {input_bytes} AS bytes
    FROM {schema}.job
    WHERE type = %(type)s AND status = 'ready'
        AND NOT EXISTS (SELECT FROM {schema}.paused_type WHERE paused_type.type = %(type)s)
    ORDER BY {rank}, scheduled_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
),
locked_size AS MATERIALIZED (
    -- The sum comes first, so that the clock is read after the scan.
    SELECT coalesce(sum(bytes), 0) AS bytes,
        extract(epoch FROM clock_timestamp() - statement_timestamp())::float8 AS seconds
    FROM locked
),
claimed AS (
    UPDATE {schema}.job
    SET {lease}
    FROM wanted
    WHERE job.ctid = ANY (ARRAY(SELECT tid FROM locked WHERE (SELECT bytes FROM locked_size) <= %(max_bytes)s))
    RETURNING {claimed_job}
),
event AS (
    {started_events}
)
SELECT {claimed_columns}, locked_size.seconds, CASE WHEN locked_size.bytes > %(max_bytes)s THEN -1 ELSE 0 END::int
FROM locked_size LEFT JOIN claimed ON true

-- name: claim_fair
-- Leases due jobs of types whose keys take turns (`fair`), and of others as `claim` does.
--
-- The keys of a type are walked in the order of the index, from the one after `cursor`, and from the first one again
-- after the last. Jobs without a key have their turn between these, as the key ''. A visited key costs one index entry,
-- however many of its jobs wait, and there are as many as the claim may take jobs, and one more. Only if there are fewer
-- keys, or only jobs of worse ranks are wanted, more entries of a key are read. Beside other types, all jobs of a type
-- count as of the rank of its best one, so that none loses its turn. The parts of `next` are read in their order, and the
-- second only after the last key: Postgres appends in order where it does not work in parallel, as in no statement that
-- writes. Scheduled jobs that have become due become ready,
-- for the next claim. Jobs that others have locked are skipped.
--
-- There is at least one row: it says how many jobs were chosen and how many became ready, whether some were left for
-- their size, and of each type the last key of which a job was claimed, the last key of the walk, and how many keys with
-- jobs it visited.
WITH RECURSIVE wanted AS MATERIALIZED (
    SELECT type, lease_seconds, CASE WHEN fair THEN cursor END AS cursor, position
    FROM unnest(%(types)s::text[], %(leases)s::float8[], %(fair)s::bool[], %(cursors)s::text[])
        WITH ORDINALITY AS w (type, lease_seconds, fair, cursor, position)
    WHERE NOT EXISTS (SELECT FROM {schema}.paused_type WHERE paused_type.type = w.type)
),
promoted AS (
    UPDATE {schema}.job
    SET status = 'ready'
    WHERE ctid = ANY (ARRAY(
        SELECT due.tid
        FROM wanted
        CROSS JOIN LATERAL (
            SELECT job.ctid AS tid
            FROM {schema}.job
            WHERE job.type || '' = wanted.type AND status = 'scheduled' AND scheduled_at <= statement_timestamp()
            ORDER BY scheduled_at LIMIT %(promoted)s FOR UPDATE SKIP LOCKED
        ) AS due
        WHERE wanted.cursor IS NOT NULL
    ))
    RETURNING id
),
{key_walk},
visited AS MATERIALIZED (
    SELECT *, count(*) OVER (PARTITION BY position) AS keys FROM walk WHERE tid IS NOT NULL
),
head AS (
    SELECT position, key, tid, rank, 1::bigint AS turn, visited FROM visited WHERE %(first_rank)s::int IS NULL
    UNION ALL
    SELECT visited.position, visited.key, more.tid, more.rank,
        1 + row_number() OVER (PARTITION BY visited.position, visited.key ORDER BY more.rank, more.scheduled_at), visited.visited
    FROM visited
    CROSS JOIN LATERAL (
        (SELECT job.ctid AS tid, {rank} AS rank, scheduled_at
         FROM {schema}.job
         WHERE visited.key <> '' AND job.type = visited.type AND status = 'ready' AND limit_key = visited.key
             AND {rank} >= coalesce(%(first_rank)s::int, '-2147483648')
         ORDER BY {rank}, scheduled_at
         OFFSET CASE WHEN %(first_rank)s::int IS NULL THEN 1 ELSE 0 END LIMIT 2 * %(limit)s / visited.keys)
        UNION ALL
        (SELECT job.ctid, {rank}, scheduled_at
         FROM {schema}.job
         WHERE visited.key = '' AND job.type = visited.type AND status = 'ready' AND limit_key IS NULL
             AND {rank} >= coalesce(%(first_rank)s::int, '-2147483648')
         ORDER BY {rank}, scheduled_at
         OFFSET CASE WHEN %(first_rank)s::int IS NULL THEN 1 ELSE 0 END LIMIT 2 * %(limit)s / visited.keys)
    ) AS more
    WHERE visited.keys < %(limit)s OR %(first_rank)s::int IS NOT NULL
),
candidate AS (
    SELECT position, tid, min(rank) OVER (PARTITION BY position) AS rank, key, place AS turn
    FROM (
        SELECT head.*, row_number() OVER (PARTITION BY position ORDER BY turn, visited) AS place FROM head
    ) AS placed
    WHERE place <= %(limit)s
    UNION ALL
    SELECT wanted.position, other.tid, other.rank, NULL, row_number() OVER (
        PARTITION BY wanted.position, other.rank ORDER BY other.scheduled_at)
    FROM wanted
    CROSS JOIN LATERAL (
        (SELECT job.ctid AS tid, {rank} AS rank, scheduled_at
         FROM {schema}.job
         WHERE job.type = wanted.type AND status = 'ready' AND {rank} >= coalesce(%(first_rank)s::int, '-2147483648')
         ORDER BY {rank}, scheduled_at LIMIT %(limit)s)
        UNION ALL
        (SELECT job.ctid, greatest({rank}, %(first_rank)s::int), scheduled_at
         FROM {schema}.job
         WHERE job.type || '' = wanted.type AND status = 'scheduled' AND scheduled_at <= statement_timestamp()
         ORDER BY scheduled_at LIMIT %(limit)s)
    ) AS other
    WHERE wanted.cursor IS NULL
),
chosen AS MATERIALIZED (
    SELECT tid, position, key, row_number() OVER (ORDER BY rank, turn, position) AS place
    FROM candidate ORDER BY place LIMIT %(limit)s
),
locked AS MATERIALIZED (
    SELECT ctid AS tid, {input_bytes} AS bytes
    FROM {schema}.job WHERE ctid = ANY (ARRAY(SELECT tid FROM chosen)) FOR UPDATE SKIP LOCKED
),
fitting AS MATERIALIZED (
    SELECT tid, position, key, place, bytes, sum(bytes) OVER (ORDER BY place) AS upto
    FROM locked JOIN chosen USING (tid)
),
claimed AS (
    UPDATE {schema}.job
    SET {lease}
    FROM wanted
    WHERE job.ctid = ANY (ARRAY(SELECT tid FROM fitting WHERE {fits})) AND job.type = wanted.type
    RETURNING {claimed_job}
),
event AS (
    {started_events}
),
summary AS (
    SELECT (SELECT count(*) FROM chosen)::int AS chosen, (SELECT count(*) FROM promoted)::int AS promoted,
        (SELECT coalesce(max(upto), 0) > %(max_bytes)s FROM fitting) AS cut,
        (SELECT json_agg(json_build_array(wanted.type, (
            SELECT key FROM fitting
            WHERE fitting.position = wanted.position AND {fits}
            ORDER BY place DESC LIMIT 1
        ), (
            SELECT key FROM walk WHERE walk.position = wanted.position ORDER BY visited DESC LIMIT 1
        ), (
            SELECT count(tid) FROM walk WHERE walk.position = wanted.position
        ))) FROM wanted WHERE cursor IS NOT NULL)::text AS keys
)
SELECT {claimed_columns}, summary.*
FROM summary LEFT JOIN claimed ON true

-- name: claim_next_key
-- Leases a ready job of the one type, whose keys take turns: what `claim_fair` does for a single job, with a third of its
-- clauses, which each execution has to set up. The keys after `cursor` come first, then jobs without a key, then the keys
-- up to it. If others have locked the best job of a key, its next one is taken. The rows are those of `claim_fair`.
WITH wanted AS (
    SELECT %(lease)s::float8 AS lease_seconds
),
{promoted_type},
locked AS MATERIALIZED (
    SELECT turn.tid, turn.key
    FROM (
        SELECT * FROM (
            SELECT job.ctid AS tid, limit_key AS key
            FROM {schema}.job
            WHERE type = %(type)s AND status = 'ready' AND limit_key > %(cursor)s COLLATE "C"
            ORDER BY limit_key, {rank}, scheduled_at LIMIT 1 FOR UPDATE SKIP LOCKED
        ) AS following
        UNION ALL
        SELECT * FROM (
            SELECT job.ctid, ''
            FROM {schema}.job
            WHERE type = %(type)s AND status = 'ready' AND limit_key IS NULL
            ORDER BY {rank}, scheduled_at LIMIT 1 FOR UPDATE SKIP LOCKED
        ) AS free
        UNION ALL
        SELECT * FROM (
            SELECT job.ctid, limit_key
            FROM {schema}.job
            WHERE type = %(type)s AND status = 'ready' AND limit_key <= %(cursor)s COLLATE "C"
            ORDER BY limit_key, {rank}, scheduled_at LIMIT 1 FOR UPDATE SKIP LOCKED
        ) AS first
    ) AS turn
    WHERE NOT EXISTS (SELECT FROM {schema}.paused_type WHERE paused_type.type = %(type)s)
    LIMIT 1
),
claimed AS (
    UPDATE {schema}.job
    SET {lease}
    FROM wanted
    WHERE job.ctid = ANY (ARRAY(SELECT tid FROM locked))
    RETURNING {claimed_job}
),
event AS (
    {started_events}
)
SELECT {claimed_columns}, summary.*
FROM (
    SELECT (SELECT count(*) FROM locked)::int AS chosen, (SELECT count(*) FROM promoted)::int AS promoted, false AS cut,
        (SELECT json_build_array(json_build_array(%(type)s::text, key, key, 1)) FROM locked)::text AS keys
) AS summary
LEFT JOIN claimed ON true

-- name: claim_next_keys
-- Leases the best job of each of as many keys of the one type as jobs are wanted: what `claim_fair` does where there are
-- so many, without what else it may need. It claims nothing if there are fewer keys, or if the inputs do not fit. A key
-- whose best job others have locked has had its turn. The rows are those of `claim_fair`; `chosen` is the number of keys
-- that were found, up to the number that is wanted.
WITH RECURSIVE wanted AS MATERIALIZED (
    SELECT %(type)s::text AS type, %(lease)s::float8 AS lease_seconds, %(cursor)s::text AS cursor, 1 AS position
    WHERE NOT EXISTS (SELECT FROM {schema}.paused_type WHERE paused_type.type = %(type)s)
),
{promoted_type},
{key_walk},
chosen AS MATERIALIZED (
    SELECT count(*)::int AS keys, array_agg(tid) AS tids, (array_agg(key))[count(*)] AS last
    FROM (SELECT tid, key FROM walk WHERE tid IS NOT NULL ORDER BY visited LIMIT %(limit)s) AS first
),
locked AS MATERIALIZED (
    SELECT ctid AS tid, {input_bytes} AS bytes
    FROM {schema}.job
    WHERE ctid = ANY ((SELECT tids FROM chosen WHERE keys = %(limit)s)::tid[]) FOR UPDATE SKIP LOCKED
),
total AS MATERIALIZED (
    SELECT coalesce(sum(bytes), 0) <= %(max_bytes)s AS fits FROM locked
),
claimed AS (
    UPDATE {schema}.job
    SET {lease}
    FROM wanted
    WHERE job.ctid = ANY (ARRAY(SELECT tid FROM locked WHERE (SELECT fits FROM total)))
    RETURNING {claimed_job}
),
event AS (
    {started_events}
)
SELECT {claimed_columns}, summary.*
FROM (
    SELECT keys AS chosen, (SELECT count(*) FROM promoted)::int AS promoted, NOT fits AS cut,
        json_build_array(json_build_array(
            %(type)s::text, CASE WHEN fits AND keys = %(limit)s THEN last END, last, keys
        ))::text AS keys
    FROM chosen, total
) AS summary
LEFT JOIN claimed ON true

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
    JOIN {schema}.job ON job.id = params.id AND {holds_lease:params.token}
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
-- index has the end of the lease, so the new version of the row is heap-only. Of some attempts the progress becomes an
-- event as well.
--
-- The lease of a row that was skipped is extended in a table of its own, which the reaper reads: the row may stay
-- locked for longer than the lease lasts, and the reaper may be the first to lock it afterwards.
WITH free AS MATERIALIZED (
    SELECT job.id, params.seconds, params.progress
    FROM unnest(%(ids)s::text[], %(tokens)s::uuid[], %(seconds)s::float8[], %(progress)s::text[])
        AS params (id, token, seconds, progress)
    JOIN {schema}.job ON job.id = params.id AND {holds_lease:params.token}
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
extended AS (
    INSERT INTO {schema}.lease_extension (job_id, lease_token, expires_at)
    SELECT DISTINCT ON (job.id) job.id, job.lease_token, clock_timestamp() + params.seconds * interval '1 second'
    FROM unnest(%(ids)s::text[], %(tokens)s::uuid[], %(seconds)s::float8[]) AS params (id, token, seconds)
    JOIN {schema}.job ON job.id = params.id AND {holds_lease:params.token}
    WHERE (SELECT count(*) FROM free) < cardinality(%(ids)s::text[]) AND params.id NOT IN (SELECT id FROM free)
    ORDER BY job.id
    ON CONFLICT (job_id) DO UPDATE SET lease_token = excluded.lease_token, expires_at = excluded.expires_at
),
renewed AS (
    UPDATE {schema}.job
    SET lease_expires_at = clock_timestamp() + free.seconds * interval '1 second',
        progress = coalesce(free.progress, job.progress)
    FROM free
    WHERE job.id = free.id
    RETURNING job.id, job.lease_token, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt,
        job.scheduled_at, job.started_at, job.holder, job.progress
){progress_events}
SELECT id, lease_token::text FROM renewed

-- name: lock_limits
-- Makes claims of types with limits run one after the other, until the transaction ends. The locks are taken in one
-- order, so that two claims which share several types cannot deadlock. It is a statement of its own because counting
-- needs a newer snapshot.
SELECT pg_advisory_xact_lock(key)
FROM (
    SELECT DISTINCT hashtextextended('{schema} limits of ' || type, 0) AS key
    FROM unnest(%(bounded)s::text[]) AS limited (type)
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
-- free slots, those with the best heads hold the best jobs, so only these are read further. Where keys take turns
-- (`fair`), the keys that were visited first hold them instead, and the next walk begins after the last key admitted.
--
-- In a type with an order (`ordered`), a key has one job at most: the first job of the chain that goes first, once no
-- other chain of the key has begun. Later jobs of chains are of chains that have begun, and have no order.
WITH RECURSIVE params AS MATERIALIZED (
    SELECT a.*, fair OR ordered OR per_key IS NOT NULL OR starts IS NOT NULL AS by_key,
        statement_timestamp() - seconds * interval '1 second' AS since
    FROM unnest(%(limited)s::text[], %(concurrencies)s::int[], %(per_keys)s::int[], %(starts)s::int[],
                %(windows)s::float8[], %(fair)s::bool[], %(ordered)s::bool[], %(cursors)s::text[])
        AS a (type, concurrency, per_key, starts, seconds, fair, ordered, cursor)
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
    SELECT type, key, sum(count) AS running, max(visited) AS visited
    FROM (
        SELECT type, key, 0 AS count, visited FROM walk
        UNION ALL
        SELECT type, key, count, 0 FROM running
    ) AS both_of_them
    GROUP BY type, key
    HAVING max(visited) > 0
),
slots AS MATERIALIZED (
    SELECT visited.type, visited.key, visited.visited, limited.free, limited.fair, limited.ordered,
        least(%(limit)s, limited.per_key - visited.running, limited.starts - CASE WHEN limited.starts IS NOT NULL THEN (
            SELECT count(*) FROM (
                SELECT FROM {schema}.limit_start
                WHERE limit_start.type = visited.type AND limit_key = visited.key AND started_at > limited.since
                LIMIT limited.starts
            ) AS started
        ) END) AS free_of_key
    FROM visited JOIN limited USING (type)
),
heads AS (
    SELECT slots.*, row_number() OVER (
            PARTITION BY slots.type ORDER BY CASE WHEN slots.fair THEN slots.visited END, head.rank, head.scheduled_at
        ) AS place
    FROM slots
    CROSS JOIN LATERAL (
        SELECT {rank} AS rank, scheduled_at
        FROM {schema}.job
        WHERE job.type = slots.type AND limit_key = slots.key AND status = 'ready' AND id <> ALL (%(passed_over)s::text[])
            AND {rank} >= %(first_rank)s::int
        ORDER BY {rank}, scheduled_at LIMIT 1
    ) AS head
    WHERE slots.free_of_key > 0 AND NOT slots.ordered
),
found AS (
    SELECT heads.type, heads.free, heads.fair, heads.key, heads.visited, best.*
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
    SELECT slots.type, slots.free, slots.fair, slots.key, slots.visited, first.rank, first.scheduled_at, first.id
    FROM slots
    CROSS JOIN LATERAL (
        SELECT {rank} AS rank, scheduled_at, id, status
        FROM {schema}.job
        WHERE job.type || '' = slots.type AND limit_key = slots.key AND chain_status = 'open'
        ORDER BY {not_begun}, created_at, id LIMIT 1
    ) AS first
    WHERE slots.ordered AND slots.free_of_key > 0 AND first.status = 'ready' AND first.id <> ALL (%(passed_over)s::text[])
        AND first.rank >= %(first_rank)s::int
        -- As a value, because the planner would make a join of NOT EXISTS.
        AND (
            SELECT id
            FROM {schema}.job
            WHERE job.type || '' = slots.type AND limit_key = slots.key AND chain_status = 'open'
                AND {not_begun} = 0 AND status IN ('running', 'continued')
            ORDER BY created_at, id LIMIT 1
        ) IS NULL
    UNION ALL
    SELECT limited.type, limited.free, limited.fair, later.limit_key, 0, later.rank, later.scheduled_at, later.id
    FROM limited
    CROSS JOIN LATERAL (
        SELECT {rank} AS rank, scheduled_at, id, limit_key
        FROM {schema}.job
        WHERE job.type = limited.type AND status = 'ready' AND chain_index > 0 AND limit_key IS NOT NULL
            AND id <> ALL (%(passed_over)s::text[]) AND {rank} >= %(first_rank)s::int
        ORDER BY created_at, id LIMIT greatest(0, limited.free)
    ) AS later
    WHERE limited.ordered AND (limited.starts IS NULL OR limited.starts > (
        SELECT count(*) FROM (
            SELECT FROM {schema}.limit_start
            WHERE limit_start.type = limited.type AND limit_start.limit_key = later.limit_key
                AND started_at > limited.since
            LIMIT limited.starts
        ) AS started
    ))
    UNION ALL
    -- Jobs without a key: they share one rate, and their turn comes when the walk goes on with the first key.
    SELECT limited.type, limited.free, limited.fair, '',
        CASE WHEN limited.fair THEN (
            SELECT count(*) FROM walk WHERE walk.type = limited.type AND walk.round = 1
        ) - 0.5 END, best.*
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
    SELECT limited.type, limited.free, false, NULL, NULL, best.*
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
    SELECT *, row_number() OVER (
            PARTITION BY type ORDER BY CASE WHEN fair THEN round END, CASE WHEN fair THEN visited END, rank, scheduled_at, id
        ) AS place,
        row_number() OVER (PARTITION BY type, rank ORDER BY scheduled_at, id) AS turn
    FROM (
        SELECT *, row_number() OVER (PARTITION BY type, key ORDER BY rank, scheduled_at, id) AS round FROM found
    ) AS turns
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
    SELECT id, type, fair, key, place FROM (
        SELECT type, rank, turn, id, fair, key, place FROM admitted WHERE place <= free AND NOT fair
        UNION ALL
        SELECT type, min(rank) OVER (PARTITION BY type), place, id, fair, key, place FROM admitted WHERE place <= free AND fair
        UNION ALL
        SELECT type, rank, turn, NULL, false, NULL, NULL FROM others
    ) AS every
    ORDER BY rank, turn, array_position(%(types)s::text[], type) LIMIT %(limit)s
)
SELECT id, NULL AS type, NULL AS key FROM best
UNION ALL
SELECT NULL, type, key FROM walk
WHERE visited = %(most_keys)s AND NOT EXISTS (SELECT FROM best WHERE best.type = walk.type AND best.fair)
UNION ALL
(SELECT DISTINCT ON (type) NULL, type, key FROM best WHERE fair ORDER BY type, place DESC)

-- name: claim_admitted
-- Leases the ready jobs that were admitted, skips what others have locked, and records the starts of types with a
-- rate. As in `claim`, it takes the best whose inputs fit into `max_bytes`, at least one; every row says whether all
-- did.
WITH wanted AS MATERIALIZED (
    SELECT * FROM unnest(%(types)s::text[], %(leases)s::float8[]) AS w (type, lease_seconds)
),
locked AS MATERIALIZED (
    SELECT ctid AS tid, status, {rank} AS rank, scheduled_at, {input_bytes} AS bytes
    FROM {schema}.job WHERE id = ANY (%(ids)s::text[]) FOR UPDATE SKIP LOCKED
),
fitting AS MATERIALIZED (
    SELECT tid, bytes, sum(bytes) OVER (ORDER BY rank, scheduled_at, tid ROWS UNBOUNDED PRECEDING) AS upto
    FROM locked
    WHERE status = 'ready'
),
claimed AS (
    UPDATE {schema}.job
    SET {lease}
    FROM wanted
    WHERE job.ctid = ANY (ARRAY(SELECT tid FROM fitting WHERE {fits})) AND job.type = wanted.type
    RETURNING {claimed_job}, job.limit_key
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
SELECT {claimed_columns}, size.cut
FROM (SELECT coalesce(max(upto), 0) > %(max_bytes)s AS cut FROM fitting) AS size LEFT JOIN claimed ON true

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
