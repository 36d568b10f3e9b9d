-- Which ready jobs of the limited types the limits let through, best first among those of the other types, of which only
-- is said how many they are. Of one rank, types take turns. None is of a better rank than the first one asked for.
-- Besides: where the walk over a type's keys ended, if it did not come round.
--
-- Under the lock of the limited types, so what runs of them, and what has started, is all that counts. The index by
-- key is walked from key to key, from the one after `cursor` on: a key costs one entry, however many of its jobs wait.
-- Of the keys with free slots, those with the best heads hold the best jobs, so only these are read further.
WITH RECURSIVE asked AS MATERIALIZED (
    SELECT a.*, per_key IS NOT NULL OR starts IS NOT NULL AS by_key,
        statement_timestamp() - seconds * interval '1 second' AS since
    FROM unnest(%(limited)s::text[], %(concurrencies)s::int[], %(per_keys)s::int[], %(starts)s::int[],
                %(windows)s::float8[], %(cursors)s::text[])
        AS a (type, concurrency, per_key, starts, seconds, cursor)
    WHERE NOT EXISTS (SELECT FROM {schema}.paused_type WHERE paused_type.type = a.type)
),
-- All that run, of which there are as many as slots: one by one for each key would be another plan at the planner's mercy.
running AS MATERIALIZED (
    SELECT asked.type, of_key.*
    FROM asked
    CROSS JOIN LATERAL (
        SELECT limit_key AS key, count(*) AS count
        FROM {schema}.job
        WHERE job.type = asked.type AND status = 'running'
        GROUP BY limit_key
    ) AS of_key
),
limited AS MATERIALIZED (
    SELECT asked.*, least(%(limit)s, concurrency - coalesce(
        (SELECT sum(count) FROM running WHERE running.type = asked.type), 0)) AS free
    FROM asked
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
    -- Grouped rather than joined, which could be each with each.
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
        SELECT attempt - uncounted - lease_expirations - priority AS rank, scheduled_at
        FROM {schema}.job
        WHERE job.type = slots.type AND limit_key = slots.key AND status = 'ready' AND id <> ALL (%(passed_over)s::text[])
            AND attempt - uncounted - lease_expirations - priority >= %(first_rank)s::int
        ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at LIMIT 1
    ) AS head
    WHERE slots.free_of_key > 0
),
found AS (
    SELECT heads.type, heads.free, best.*
    FROM heads
    CROSS JOIN LATERAL (
        SELECT attempt - uncounted - lease_expirations - priority AS rank, scheduled_at, id
        FROM {schema}.job
        WHERE job.type = heads.type AND limit_key = heads.key AND status = 'ready' AND id <> ALL (%(passed_over)s::text[])
            AND attempt - uncounted - lease_expirations - priority >= %(first_rank)s::int
        ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at
        LIMIT least(heads.free, heads.free_of_key)
    ) AS best
    WHERE heads.place <= heads.free
    UNION ALL
    -- Without a key: all of them share one rate.
    SELECT limited.type, limited.free, best.*
    FROM limited
    CROSS JOIN LATERAL (
        SELECT attempt - uncounted - lease_expirations - priority AS rank, scheduled_at, id
        FROM {schema}.job
        WHERE job.type = limited.type AND limit_key IS NULL AND status = 'ready' AND id <> ALL (%(passed_over)s::text[])
            AND attempt - uncounted - lease_expirations - priority >= %(first_rank)s::int
        ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at
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
    -- Keys are of no account.
    SELECT limited.type, limited.free, best.*
    FROM limited
    CROSS JOIN LATERAL (
        SELECT attempt - uncounted - lease_expirations - priority AS rank, scheduled_at, id
        FROM {schema}.job
        WHERE job.type = limited.type AND status = 'ready' AND id <> ALL (%(passed_over)s::text[])
            AND attempt - uncounted - lease_expirations - priority >= %(first_rank)s::int
        ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at LIMIT greatest(0, limited.free)
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
        (SELECT attempt - uncounted - lease_expirations - priority AS rank, scheduled_at
         FROM {schema}.job
         WHERE job.type = other.type AND status = 'ready'
             AND attempt - uncounted - lease_expirations - priority >= %(first_rank)s::int
         ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at LIMIT %(limit)s)
        UNION ALL
        (SELECT greatest(attempt - uncounted - lease_expirations - priority, %(first_rank)s::int), scheduled_at
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
