-- name: get_jobs
SELECT {job_columns:clock_timestamp()}
FROM {schema}.job WHERE id = ANY (%(ids)s::text[])

-- name: get_chains
-- Reads chains by id. Expired chains count as gone, whether or not they have been deleted.
SELECT {chain_columns}
FROM {schema}.chain WHERE id = ANY (%(ids)s::text[]) AND (expires_at IS NULL OR expires_at > clock_timestamp())

-- name: closed_chains
-- Reads chains by id as get_chains does: those that have closed, as many as fit into a portion of some bytes, at least
-- one. Of the others it reads only the status, so that waiting for thousands of large chains does not read them at each
-- poll. Sizes are those that are stored, compressed or not, which needs no reading.
SELECT {fitting_chain_columns}
FROM (
    SELECT *, status <> 'open' AND coalesce(sum(size) OVER (ORDER BY status = 'open', id COLLATE "C"
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) < %(portion)s AS fits
    FROM (
        SELECT *, CASE WHEN status = 'open' THEN 0 ELSE pg_column_size(input) + coalesce(pg_column_size(output), 0)
            + coalesce(pg_column_size(error), 0) + coalesce(pg_column_size(attributes), 0) END AS size
        FROM {schema}.chain WHERE id = ANY (%(ids)s::text[]) AND (expires_at IS NULL OR expires_at > clock_timestamp())
    ) AS sized
) AS measured

-- name: get_chain_states
-- Reads chains and their last jobs by id, without inputs and outputs: for callers that watch them.
SELECT {chain_state_columns}
FROM {schema}.chain JOIN {schema}.job AS tail ON tail.id = chain.tail_id
WHERE chain.id = ANY (%(ids)s::text[]) AND (chain.expires_at IS NULL OR chain.expires_at > clock_timestamp())

-- name: chains_of_key
-- Reads the chains of a deduplication key, the newest first: the open ones, or all that have not expired. As in
-- find_duplicates, ORDER BY names the columns of the index.
SELECT found.id
FROM (
    (SELECT id FROM {schema}.job
     WHERE %(only_open)s::bool AND type = %(type)s::text AND deduplication_key = %(key)s::text AND chain_status = 'open'
     ORDER BY type DESC, deduplication_key DESC, created_at DESC LIMIT %(limit)s::bigint)
    UNION ALL
    (SELECT id FROM {schema}.job
     WHERE NOT %(only_open)s::bool AND type = %(type)s::text AND deduplication_key = %(key)s::text
        AND (expires_at IS NULL OR expires_at > statement_timestamp())
     ORDER BY type DESC, deduplication_key DESC, created_at DESC LIMIT %(limit)s::bigint)
) AS found

-- name: get_blockers
SELECT chain.id, chain.type, chain.status, chain.tail_type,
    CASE WHEN chain.status = 'completed' AND %(outputs)s::bool THEN chain.output::text END,
    CASE WHEN %(outputs)s::bool THEN chain.error::text END, tail.attempt_trace_context
FROM {schema}.job_blocker JOIN {schema}.chain ON chain.id = blocker_chain_id
LEFT JOIN {schema}.job AS tail ON tail.id = chain.tail_id
WHERE job_blocker.job_id = %(id)s
ORDER BY position

-- name: get_blocker_links
-- Reads which chains the jobs of chains wait for. Of each job the first ones are read, not all of 100,000.
SELECT params.chain, link.job_id, link.blocker_chain_id
FROM unnest(%(chains)s::text[]) WITH ORDINALITY AS params (chain, place)
CROSS JOIN LATERAL (
    SELECT waiting.chain_index, entry.job_id, entry.position, entry.blocker_chain_id
    FROM (
        SELECT id, chain_index FROM {schema}.job
        WHERE id = params.chain AND chain_index = 0 AND blocker_count > 0
        UNION ALL
        SELECT id, chain_index FROM {schema}.job
        WHERE chain_index > 0 AND chain_id = params.chain AND blocker_count > 0
    ) AS waiting
    CROSS JOIN LATERAL (
        SELECT job_id, position, blocker_chain_id FROM {schema}.job_blocker
        WHERE job_id = waiting.id ORDER BY job_id, position LIMIT %(limit)s::bigint
    ) AS entry
    ORDER BY waiting.chain_index, entry.position LIMIT %(limit)s::bigint
) AS link
ORDER BY params.place, link.chain_index, link.position

-- name: get_dependent_links
-- Reads which jobs of some statuses wait for chains, but for those of some chains. As soon as it has found enough of a
-- chain, it reads no more of its jobs.
SELECT found.chain_id, found.job_id, params.chain
FROM unnest(%(chains)s::text[]) WITH ORDINALITY AS params (chain, place)
CROSS JOIN LATERAL (
    SELECT entry.job_id, waiting.chain_id
    FROM {schema}.job_blocker AS entry
    CROSS JOIN LATERAL (
        SELECT chain_id FROM {schema}.job
        WHERE job.id = entry.job_id AND job.status = ANY (%(statuses)s::text[]) LIMIT 1
    ) AS waiting
    WHERE entry.blocker_chain_id = params.chain
        AND waiting.chain_id NOT IN (SELECT unnest(%(excluding)s::text[]))
    ORDER BY entry.blocker_chain_id, entry.job_id LIMIT %(limit)s::bigint
) AS found
ORDER BY params.place, found.job_id

-- name: list_chains
-- Reads a page of chains, as list_jobs does, of first jobs only. The status of a first job that has not continued is
-- that of its chain; the others are in the index chain_listing, by the status of the chain.
WITH RECURSIVE {known_types},
kind (status, chain_status) AS (
    SELECT * FROM (VALUES
        ('blocked', 'open'), ('scheduled', 'open'), ('ready', 'open'), ('running', 'open'), ('continued', 'open'),
        ('completed', 'completed'), ('continued', 'completed'), ('failed', 'failed'), ('continued', 'failed'),
        ('cancelled', 'cancelled'), ('continued', 'cancelled')) AS known_kind (status, chain_status)
    WHERE known_kind.chain_status = ANY (%(statuses)s::text[])
),
stretch AS MATERIALIZED (
    SELECT params.type, kind.status, kind.chain_status, head.created_at, head.id
    FROM (SELECT unnest(%(types)s::text[]) AS type UNION ALL SELECT type FROM known) AS params
    CROSS JOIN kind
    CROSS JOIN LATERAL (
        (SELECT created_at, id FROM {schema}.job
         WHERE kind.status NOT IN ('running', 'continued') AND chain_index = 0 AND job.status <> 'running'
            AND job.type = params.type AND job.status = kind.status
            AND {within_page}
         ORDER BY created_at {order}, id {order} LIMIT 1)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE kind.status = 'running' AND job.status = 'running' AND job.type = params.type AND chain_index = 0
            AND {within_page}
         ORDER BY created_at {order}, id {order} LIMIT 1)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE kind.status = 'continued' AND job.status = 'continued'
            AND job.type = params.type AND job.chain_status = kind.chain_status
            AND {within_page}
         ORDER BY created_at {order}, id {order} LIMIT 1)
    ) AS head
    ORDER BY head.created_at {order}, head.id {order} LIMIT %(limit)s::bigint
),
page AS MATERIALIZED (
    SELECT entry.id
    FROM stretch
    CROSS JOIN LATERAL (
        (SELECT created_at, id FROM {schema}.job
         WHERE stretch.status NOT IN ('running', 'continued') AND chain_index = 0 AND job.status <> 'running'
            AND job.type = stretch.type AND job.status = stretch.status
            AND {within_page}
         ORDER BY created_at {order}, id {order} LIMIT %(limit)s::bigint)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE stretch.status = 'running' AND job.status = 'running' AND job.type = stretch.type AND chain_index = 0
            AND {within_page}
         ORDER BY created_at {order}, id {order} LIMIT %(limit)s::bigint)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE stretch.status = 'continued' AND job.status = 'continued'
            AND job.type = stretch.type AND job.chain_status = stretch.chain_status
            AND {within_page}
         ORDER BY created_at {order}, id {order} LIMIT %(limit)s::bigint)
    ) AS entry
    ORDER BY entry.created_at {order}, entry.id {order} LIMIT %(limit)s::bigint
)
SELECT {chain_columns}
FROM {schema}.chain WHERE id = ANY (ARRAY(SELECT page.id FROM page))
ORDER BY created_at {order}, id {order}

-- name: list_chains_by_attributes
-- Reads a page of the chains that have all these attributes. The entries of each attribute are in the order of the
-- page. A step takes the next entry of the first attribute, looks for the first entry of each attribute from there on,
-- and continues at the farthest of these; if all are the same, that chain has all attributes. So a step skips what the
-- rarest attribute leaves out, and steps go on until the page is full. Types and statuses are read from the chain's
-- row. There is one bound on either side: the scan would read what lies between two bounds on one side.
WITH RECURSIVE leap (step, created_at, chain_id, found) AS (
    SELECT 0, %({first})s::timestamptz, %({first}_id)s::text COLLATE "C", true
    UNION ALL
    SELECT leap.step + 1, far.created_at, far.chain_id, (far.created_at, far.chain_id) = (next.created_at, next.chain_id)
    FROM leap
    CROSS JOIN LATERAL (
        SELECT created_at, chain_id FROM {schema}.chain_attribute
        WHERE name = (%(names)s::text[])[1] AND value = (%(values)s::text[])[1]
            AND (created_at, chain_id) {up_to} (leap.created_at, leap.chain_id)
            AND (created_at, chain_id) {beyond} (%({last})s::timestamptz, %({last}_id)s::text)
            AND NOT (leap.found AND chain_id = leap.chain_id AND created_at = leap.created_at)
        ORDER BY created_at {order}, chain_id {order} LIMIT 1
    ) AS next
    CROSS JOIN LATERAL (
        SELECT entry.created_at, entry.chain_id, count(*) OVER () AS number
        FROM unnest(%(names)s::text[], %(values)s::text[]) AS params (name, value)
        CROSS JOIN LATERAL (
            SELECT created_at, chain_id FROM {schema}.chain_attribute
            WHERE chain_attribute.name = params.name AND chain_attribute.value = params.value
                AND (created_at, chain_id) {up_to} (next.created_at, next.chain_id)
            ORDER BY created_at {order}, chain_id {order} LIMIT 1
        ) AS entry
        ORDER BY entry.created_at {reverse}, entry.chain_id {reverse} LIMIT 1
    ) AS far
    WHERE far.number = cardinality(%(names)s::text[])
),
page AS MATERIALIZED (
    SELECT leap.chain_id
    FROM leap
    WHERE leap.found AND leap.step > 0
        AND (
            SELECT root.chain_status = ANY (%(statuses)s::text[])
                AND (%(types)s::text[] IS NULL OR root.type = ANY (%(types)s::text[]))
            FROM {schema}.job AS root
            WHERE root.id = leap.chain_id
        )
    LIMIT %(limit)s::bigint
)
SELECT {chain_columns}
FROM {schema}.chain WHERE id = ANY (ARRAY(SELECT page.chain_id FROM page))
ORDER BY created_at {order}, id {order}

-- name: list_jobs
-- Reads a page of jobs. Each type and status is two ranges in this order, first jobs of chains and later ones, and each
-- kind has an index of its own. At most a page is read of each range, and only of those whose first entries are among
-- the best: the others cannot be on the page. Running jobs, as many as there are slots, are in neither index: they are
-- read from their own and sorted; so are scheduled jobs that are due, which count as ready ones. Where both statuses are
-- wanted, it does not matter which are due. When a job is due is in none of these indexes: its row is read for it by key,
-- where only those that are not yet due are wanted. There is one bound a side, of (created_at, id) together, at which the
-- scan starts.
WITH RECURSIVE {known_types},
stretch AS MATERIALIZED (
    SELECT params.type, status, part.name, head.created_at, head.id
    FROM (SELECT unnest(%(types)s::text[]) AS type UNION ALL SELECT type FROM known) AS params
    CROSS JOIN unnest(%(statuses)s::text[]) AS status
    JOIN (VALUES ('first'), ('later'), ('running'), ('due')) AS part (name) ON CASE part.name
        WHEN 'running' THEN status = 'running' WHEN 'due' THEN status = 'ready' AND 'scheduled' <> ALL (%(statuses)s::text[])
        ELSE status <> 'running' END
    CROSS JOIN LATERAL (
        (SELECT created_at, id FROM {schema}.job
         WHERE part.name = 'first' AND chain_index = 0 AND job.status <> 'running'
            AND job.type = params.type AND job.status = status.status
            AND (job.status <> 'scheduled' OR 'ready' = ANY (%(statuses)s::text[]) OR {is_later})
            AND {within_page}
         ORDER BY created_at {order}, id {order} LIMIT 1)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE part.name = 'later' AND chain_index > 0 AND job.status <> 'running'
            AND job.type = params.type AND job.status = status.status
            AND (job.status <> 'scheduled' OR 'ready' = ANY (%(statuses)s::text[]) OR {is_later})
            AND {within_page}
         ORDER BY created_at {order}, id {order} LIMIT 1)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE part.name = 'running' AND job.status = 'running' AND job.type = params.type
            AND {within_page}
         ORDER BY created_at {order}, id {order} LIMIT 1)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE part.name = 'due' AND job.status = 'scheduled' AND job.type || '' = params.type
            AND scheduled_at <= statement_timestamp()
            AND {within_page}
         ORDER BY created_at {order}, id {order} LIMIT 1)
    ) AS head
    ORDER BY head.created_at {order}, head.id {order} LIMIT %(limit)s::bigint
),
page AS MATERIALIZED (
    SELECT entry.id
    FROM stretch
    CROSS JOIN LATERAL (
        (SELECT created_at, id FROM {schema}.job
         WHERE stretch.name = 'first' AND chain_index = 0 AND job.status <> 'running'
            AND job.type = stretch.type AND job.status = stretch.status
            AND (job.status <> 'scheduled' OR 'ready' = ANY (%(statuses)s::text[]) OR {is_later})
            AND {within_page}
         ORDER BY created_at {order}, id {order} LIMIT %(limit)s::bigint)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE stretch.name = 'later' AND chain_index > 0 AND job.status <> 'running'
            AND job.type = stretch.type AND job.status = stretch.status
            AND (job.status <> 'scheduled' OR 'ready' = ANY (%(statuses)s::text[]) OR {is_later})
            AND {within_page}
         ORDER BY created_at {order}, id {order} LIMIT %(limit)s::bigint)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE stretch.name = 'running' AND job.status = 'running' AND job.type = stretch.type
            AND {within_page}
         ORDER BY created_at {order}, id {order} LIMIT %(limit)s::bigint)
        UNION ALL
        (SELECT created_at, id FROM {schema}.job
         WHERE stretch.name = 'due' AND job.status = 'scheduled' AND job.type || '' = stretch.type
            AND scheduled_at <= statement_timestamp()
            AND {within_page}
         ORDER BY created_at {order}, id {order} LIMIT %(limit)s::bigint)
    ) AS entry
    ORDER BY entry.created_at {order}, entry.id {order} LIMIT %(limit)s::bigint
)
SELECT {job_columns:statement_timestamp()}
FROM {schema}.job WHERE id = ANY (ARRAY(SELECT page.id FROM page))
ORDER BY created_at {order}, id {order}

-- name: list_chain_jobs
-- Reads a page of the jobs of a chain. The first job is not in the index job_chain: its id is the chain's. The bounds
-- are of chain and index together, so that a chain of any length is read in this order and never sorted.
WITH page AS MATERIALIZED (
    SELECT id FROM (
        SELECT id, chain_index FROM {schema}.job
        WHERE id = %(chain)s AND chain_index = 0 AND 0 > %(low)s::integer AND 0 < %(high)s::integer
        UNION ALL
        (
            SELECT id, chain_index FROM {schema}.job
            WHERE chain_index > 0 AND (chain_id, chain_index) > (%(chain)s::text, %(low)s::integer)
                AND (chain_id, chain_index) < (%(chain)s::text, %(high)s::integer)
            ORDER BY chain_id {order}, chain_index {order} LIMIT %(limit)s::bigint
        )
    ) AS entry
    ORDER BY chain_index {order} LIMIT %(limit)s::bigint
)
SELECT {job_columns:clock_timestamp()}
FROM {schema}.job WHERE id = ANY (ARRAY(SELECT page.id FROM page))
ORDER BY chain_index {order}

-- name: list_dependents
-- Reads a page of the jobs that have a chain among their blockers, by id. The upper bound of the first page is the
-- chain's id followed by the lowest character: nothing lies between them.
WITH page AS MATERIALIZED (
    SELECT job_id FROM {schema}.job_blocker
    WHERE (blocker_chain_id, job_id) > (%(chain)s::text, %(low)s::text)
        AND (blocker_chain_id, job_id) < (%(high_chain)s::text, %(high)s::text)
    ORDER BY blocker_chain_id {order}, job_id {order} LIMIT %(limit)s::bigint
)
SELECT {job_columns:clock_timestamp()}
FROM {schema}.job WHERE id = ANY (ARRAY(SELECT job_id FROM page))
ORDER BY id {order}

-- name: count_jobs
-- Counts jobs by type and status, up to one above a cap, and reads the age of the oldest. For statuses without an index
-- by age, rows are read, if there are at most a thousand. Each ORDER BY is that of an index: it keeps the planner from
-- scanning the table until it has found enough.
WITH RECURSIVE {known_types},
params AS MATERIALIZED (SELECT unnest(%(types)s::text[]) AS type UNION ALL SELECT type FROM known)
SELECT params.type, found.status, found.due, found.number, extract(epoch FROM clock_timestamp() - found.oldest)::float8
FROM params CROSS JOIN LATERAL (
    SELECT status, false AS due, counted.number, CASE WHEN status = 'ready' THEN ready.oldest ELSE age.oldest END AS oldest
    FROM unnest(%(statuses)s::text[]) AS status
    CROSS JOIN LATERAL (
        SELECT least(count(*), %(cap)s::bigint + 1) AS number FROM (
            (SELECT FROM {schema}.job
             WHERE status.status <> 'running' AND chain_index = 0 AND job.status <> 'running'
                AND job.type = params.type AND job.status = status.status
             ORDER BY created_at, id LIMIT %(cap)s::bigint + 1)
            UNION ALL
            (SELECT FROM {schema}.job
             WHERE status.status <> 'running' AND chain_index > 0 AND job.status <> 'running'
                AND job.type = params.type AND job.status = status.status
             ORDER BY created_at, id LIMIT %(cap)s::bigint + 1)
            UNION ALL
            (SELECT FROM {schema}.job
             WHERE status.status = 'running' AND job.status = 'running' AND job.type = params.type
             ORDER BY type LIMIT %(cap)s::bigint + 1)
        ) AS entry
    ) AS counted
    CROSS JOIN LATERAL (
        SELECT min(seen.since) AS oldest FROM (
            (SELECT coalesce(finished_at, scheduled_at) AS since FROM {schema}.job
             WHERE status.status NOT IN ('ready', 'running') AND chain_index = 0 AND job.status <> 'running'
                AND job.type = params.type AND job.status = status.status
                AND counted.number <= least(1000, %(cap)s::bigint)
             ORDER BY created_at, id LIMIT 1000)
            UNION ALL
            (SELECT coalesce(finished_at, scheduled_at) AS since FROM {schema}.job
             WHERE status.status NOT IN ('ready', 'running') AND chain_index > 0 AND job.status <> 'running'
                AND job.type = params.type AND job.status = status.status
                AND counted.number <= least(1000, %(cap)s::bigint)
             ORDER BY created_at, id LIMIT 1000)
            UNION ALL
            (SELECT coalesce(finished_at, scheduled_at) AS since FROM {schema}.job
             WHERE status.status = 'running' AND job.status = 'running' AND job.type = params.type
                AND counted.number <= least(1000, %(cap)s::bigint)
             ORDER BY type LIMIT 1000)
        ) AS seen
    ) AS age
    -- Ready jobs are in the order of their age within each rank that there is: a few priorities and numbers of failures.
    CROSS JOIN LATERAL (
        WITH RECURSIVE stretch (rank, oldest, step) AS (
            (
                SELECT {rank}, scheduled_at, 1 FROM {schema}.job
                WHERE job.status = 'ready' AND job.type = params.type AND status.status = 'ready'
                ORDER BY {rank}, scheduled_at LIMIT 1
            )
            UNION ALL
            SELECT next.rank, next.scheduled_at, step + 1 FROM stretch CROSS JOIN LATERAL (
                SELECT {rank} AS rank, scheduled_at FROM {schema}.job
                WHERE job.status = 'ready' AND job.type = params.type
                    AND {rank} > stretch.rank
                ORDER BY {rank}, scheduled_at LIMIT 1
            ) AS next
            WHERE step < 200
        )
        SELECT CASE WHEN max(step) < 200 THEN min(stretch.oldest) END AS oldest FROM stretch
    ) AS ready
    UNION ALL
    SELECT 'scheduled', due, counted.number, counted.oldest
    FROM (SELECT clock_timestamp() AS now) AS clock
    CROSS JOIN LATERAL (VALUES (true, '-infinity', clock.now), (false, clock.now, 'infinity')) AS span (due, after, until)
    CROSS JOIN LATERAL (
        SELECT count(*) AS number, min(entry.scheduled_at) AS oldest FROM (
            SELECT scheduled_at FROM {schema}.job
            WHERE job.status = 'scheduled' AND job.type || '' = params.type
                AND scheduled_at > span.after::timestamptz AND scheduled_at <= span.until
            ORDER BY scheduled_at LIMIT %(cap)s::bigint + 1
        ) AS entry
    ) AS counted
) AS found
WHERE found.number > 0

-- name: demand
-- Reads what an autoscaler reads, by the function that it calls.
SELECT type, ready, due, running, held_back, oldest_seconds
FROM {schema}.demand(%(types)s::text[], %(counted_up_to)s::integer)

-- name: wait_facts
-- Reads what decides whether a job can be claimed now. Counts end at `most`, and ORDER BY makes the planner use the index
-- for them. The rate is used up if as many attempts as it allows began within its window; it admits another when the
-- oldest of these leaves the window.
WITH params AS MATERIALIZED (
    SELECT job.id, job.type, job.chain_id, job.limit_key, {rank} AS rank, job.scheduled_at,
        type_limit.concurrency, per_key, rate_count, rate_seconds, fair, ordered,
        ordered AND chain_status = 'open' AND status <> 'running' AS waits_in_order,
        clock_timestamp() - rate_seconds * interval '1 second' AS since
    FROM {schema}.job LEFT JOIN {schema}.type_limit ON type_limit.type = job.type
    WHERE job.id = %(id)s
)
SELECT clock_timestamp(), concurrency, per_key, rate_count, rate_seconds, fair, ordered, running.count, running.of_key, begun.count,
    CASE WHEN begun.count >= rate_count THEN begun.first_at + rate_seconds * interval '1 second' END, ahead.count, before.id,
    -- Only the last step of a job can be a wait without an answer.
    (SELECT event FROM {schema}.job_step WHERE job_id = %(id)s AND event IS NOT NULL AND answered_at IS NULL),
    (SELECT CASE WHEN event IS NULL AND wake_at > clock_timestamp() THEN name END
     FROM {schema}.job_step WHERE job_id = %(id)s ORDER BY number DESC LIMIT 1),
    (SELECT array_agg(ARRAY[one.id, one.holder]) FROM (
        SELECT job.id, job.holder FROM {schema}.job WHERE job.type = params.type AND status = 'running' LIMIT %(named)s
    ) AS one),
    running.held_of_key[:%(named)s],
    (SELECT array_agg(DISTINCT newest.name) FROM (
        SELECT name FROM {schema}.sent_event WHERE chain_id = params.chain_id AND payload IS NOT NULL
        ORDER BY number DESC LIMIT %(named)s
    ) AS newest)
FROM params
CROSS JOIN LATERAL (
    SELECT count(*) AS count, count(*) FILTER (WHERE of_type.limit_key = params.limit_key) AS of_key,
        array_agg(ARRAY[of_type.id, of_type.holder]) FILTER (WHERE of_type.limit_key = params.limit_key) AS held_of_key
    FROM (
        SELECT job.id, job.limit_key, job.holder
        FROM {schema}.job WHERE job.type = params.type AND status = 'running' LIMIT %(most)s
    ) AS of_type
) AS running
CROSS JOIN LATERAL (
    SELECT count(*) AS count, min(newest.started_at) AS first_at
    FROM (
        SELECT limit_start.started_at FROM {schema}.limit_start
        WHERE limit_start.type = params.type AND limit_start.limit_key = coalesce(params.limit_key, '')
            AND limit_start.started_at > params.since
        ORDER BY limit_start.started_at DESC LIMIT params.rate_count
    ) AS newest
) AS begun
CROSS JOIN LATERAL (
    SELECT count(*) AS count
    FROM (
        (SELECT FROM {schema}.job
         WHERE params.fair IS NOT TRUE
             AND job.type = params.type AND status = 'ready' AND ({rank}, job.scheduled_at) < (params.rank, params.scheduled_at)
         ORDER BY {rank}, job.scheduled_at LIMIT %(most)s)
        UNION ALL
        (SELECT FROM {schema}.job
         WHERE params.fair AND job.type = params.type AND status = 'ready' AND job.limit_key = params.limit_key
             AND ({rank}, job.scheduled_at) < (params.rank, params.scheduled_at)
         ORDER BY {rank}, job.scheduled_at LIMIT %(most)s)
        UNION ALL
        (SELECT FROM {schema}.job
         WHERE params.fair AND params.limit_key IS NULL
             AND job.type = params.type AND status = 'ready' AND job.limit_key IS NULL
             AND ({rank}, job.scheduled_at) < (params.rank, params.scheduled_at)
         ORDER BY {rank}, job.scheduled_at LIMIT %(most)s)
    ) AS better
) AS ahead
LEFT JOIN LATERAL (
    -- The chain that goes first; if that is this one, another that has begun and goes on.
    SELECT either.id
    FROM (
        (SELECT 1 AS place, id FROM {schema}.job
         WHERE job.type || '' = params.type AND job.limit_key = params.limit_key AND chain_status = 'open'
         ORDER BY {not_begun}, created_at, id LIMIT 1)
        UNION ALL
        (SELECT 2, id FROM {schema}.job
         WHERE job.type || '' = params.type AND job.limit_key = params.limit_key AND chain_status = 'open'
             AND {not_begun} = 0 AND status IN ('running', 'continued')
         ORDER BY created_at, id LIMIT 1)
    ) AS either
    WHERE params.waits_in_order AND either.id <> params.id
    ORDER BY either.place LIMIT 1
) AS before ON true

-- name: estimate
-- The jobs of a type and status, for `estimates` to ask how many the planner expects. It is never run. A function that is
-- not safe in parallel keeps the planner from parallel plans, whose parts would not tell the numbers of rows.
SELECT pg_current_xact_id() FROM {schema}.job WHERE type = %(type)s AND status = %(status)s
