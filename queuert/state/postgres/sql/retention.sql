-- name: update_result_ttl
-- Makes closed chains expire some seconds from now. Expired chains count as gone; open ones are reported and stay as
-- they are.
WITH locked AS MATERIALIZED (
    SELECT id, chain_status FROM {schema}.job
    WHERE id = ANY (%(ids)s::text[]) AND chain_index = 0 AND (expires_at IS NULL OR expires_at > clock_timestamp())
    ORDER BY created_at, id FOR NO KEY UPDATE
),
updated AS (
    UPDATE {schema}.job SET expires_at = clock_timestamp() + %(seconds)s::float8 * interval '1 second'
    WHERE id = ANY (ARRAY(SELECT id FROM locked WHERE chain_status <> 'open'))
)
SELECT id, chain_status FROM locked

-- name: find_expired
-- Reads a page of expired chains, the earliest expiry first, and whether a reader of the event log still needs them:
-- such chains count for the page, so that it reads no more rows than its limit. Chains that never expire are not in the
-- index.
SELECT id, chain_closed_at, expires_at,
    coalesce(greatest(chain_closed_at, stale_at) >= %(closed_before)s::timestamptz, false)
FROM {schema}.job
WHERE expires_at <= statement_timestamp()
    AND (expires_at, id) > (coalesce(%(after)s::timestamptz, '-infinity'), %(after_id)s::text)
ORDER BY expires_at, id LIMIT %(limit)s

-- name: find_expired_ids
-- Reads which of these chains have expired.
SELECT id, chain_closed_at, expires_at FROM {schema}.job
WHERE id = ANY (%(ids)s::text[]) AND expires_at <= clock_timestamp()

-- name: find_beyond_retention
-- Reads a page of closed chains that the retention policy of their type does not keep, by type and outcome, the oldest
-- start first. A chain that closed before a moment was started before it, so the index of listings will do. It reads
-- the chains that were started before the limit, including those that closed after it (they were open then), and, for a
-- count, as many index entries as are kept. The limits are looked up first, so that the scan begins and ends at them.
-- What is done with a chain: `delete`, `mark` as stale, or nothing (null). A mark counts if the chain closed before it.
WITH stretch AS MATERIALIZED (
    SELECT params.*, cut.at AS cut, beyond.created_at AS mark, beyond.id AS mark_id
    FROM unnest(%(types)s::text[], %(statuses)s::text[], %(ages)s::float8[], %(counts)s::bigint[],
                %(stales)s::float8[], %(lows)s::timestamptz[], %(low_ids)s::text[]) WITH ORDINALITY
        AS params (type, status, age, count, stale, low, low_id, place)
    CROSS JOIN LATERAL (SELECT statement_timestamp() - age * interval '1 second' AS at) AS cut
    LEFT JOIN LATERAL (
        SELECT created_at, id FROM (
            (SELECT created_at, id FROM {schema}.job
             WHERE params.count IS NOT NULL AND chain_index = 0 AND job.status <> 'running'
                AND job.type = params.type AND job.status = params.status
             ORDER BY created_at DESC, id DESC LIMIT coalesce(params.count, 0) + 1)
            UNION ALL
            (SELECT created_at, id FROM {schema}.job
             WHERE params.count IS NOT NULL AND job.status = 'continued'
                AND job.type = params.type AND job.chain_status = params.status
             ORDER BY created_at DESC, id DESC LIMIT coalesce(params.count, 0) + 1)
        ) AS newest
        ORDER BY created_at DESC, id DESC OFFSET coalesce(params.count, 0) LIMIT 1
    ) AS beyond ON true
)
SELECT stretch.place, found.id, found.created_at, found.chain_closed_at, found.action
FROM stretch
CROSS JOIN LATERAL (
    SELECT id, created_at, chain_closed_at,
        CASE WHEN expires_at IS NOT NULL THEN NULL
            WHEN (chain_closed_at <= stretch.cut OR (created_at, id) <= (stretch.mark, stretch.mark_id)) IS NOT TRUE THEN NULL
            WHEN stretch.stale IS NOT NULL AND (stale_at >= chain_closed_at) IS NOT TRUE THEN 'mark'
            WHEN greatest(chain_closed_at, stale_at) >= %(closed_before)s::timestamptz THEN NULL
            WHEN stretch.stale IS NULL THEN 'delete'
            WHEN stale_at <= statement_timestamp() - stretch.stale * interval '1 second' THEN 'delete' END AS action
    FROM (
        (SELECT id, created_at, chain_closed_at, expires_at, stale_at FROM {schema}.job
         WHERE chain_index = 0 AND job.status <> 'running' AND job.type = stretch.type AND job.status = stretch.status
            AND (created_at, id) > (stretch.low, stretch.low_id)
            AND created_at <= greatest(stretch.cut, stretch.mark)
         ORDER BY created_at, id LIMIT %(limit)s)
        UNION ALL
        (SELECT id, created_at, chain_closed_at, expires_at, stale_at FROM {schema}.job
         WHERE job.status = 'continued' AND job.type = stretch.type AND job.chain_status = stretch.status
            AND (created_at, id) > (stretch.low, stretch.low_id)
            AND created_at <= greatest(stretch.cut, stretch.mark)
         ORDER BY created_at, id LIMIT %(limit)s)
    ) AS entry
    ORDER BY created_at, id LIMIT %(limit)s
) AS found
ORDER BY stretch.place, found.created_at, found.id LIMIT %(limit)s

-- name: find_needed
-- Reads which of these chains are blockers of jobs that have not ended, and so would not be deleted.
SELECT about.id
FROM unnest(%(ids)s::text[]) AS about (id)
WHERE EXISTS (
    SELECT FROM {schema}.job_blocker AS entry
    WHERE entry.blocker_chain_id = about.id
        AND (SELECT status FROM {schema}.job AS waiting WHERE waiting.id = entry.job_id)
            IN ('blocked', 'scheduled', 'ready', 'running')
)

-- name: mark_stale
-- Marks closed chains that have not changed since they were selected, and that nobody has locked, as stale.
WITH chosen AS MATERIALIZED (
    SELECT job.id
    FROM {schema}.job
    JOIN unnest(%(ids)s::text[], %(closed)s::timestamptz[]) AS params (id, closed_at) ON params.id = job.id
    WHERE job.id = ANY (%(ids)s::text[]) AND chain_index = 0 AND chain_status <> 'open'
        AND chain_closed_at = params.closed_at AND expires_at IS NULL AND (stale_at >= chain_closed_at) IS NOT TRUE
    ORDER BY job.created_at, job.id FOR NO KEY UPDATE OF job SKIP LOCKED
),
marked AS (
    UPDATE {schema}.job SET stale_at = clock_timestamp()
    WHERE id = ANY (ARRAY(SELECT id FROM chosen))
    RETURNING status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at
),
event AS (
    {insert_event}
    SELECT 'stale', {event_columns}, NULL, NULL FROM marked WHERE {event_level:marked.type} <> 'off'
)
SELECT id FROM marked

-- name: lock_prunable
-- Locks all jobs of chains that are to be pruned, and the jobs that have them as blockers, oldest first. The next
-- statement, whose snapshot is newer, decides whether a chain may be pruned.
WITH about AS MATERIALIZED (
    SELECT unnest(%(ids)s::text[]) AS id
),
member AS MATERIALIZED (
    SELECT id FROM about
    UNION ALL
    SELECT following.id
    FROM about
    CROSS JOIN LATERAL (
        SELECT job.id FROM {schema}.job WHERE job.chain_id = about.id AND job.chain_index > 0 OFFSET 0
    ) AS following
    UNION ALL
    SELECT waiting.id
    FROM about
    CROSS JOIN LATERAL (
        SELECT job_id AS id FROM {schema}.job_blocker WHERE blocker_chain_id = about.id OFFSET 0
    ) AS waiting
)
SELECT id FROM {schema}.job WHERE id = ANY (ARRAY(SELECT id FROM member))
ORDER BY created_at, id FOR UPDATE {skip_locked}

-- name: prune
-- Deletes closed chains that have not changed since they were selected, with all their jobs, and their entries as
-- blockers of finished jobs. A chain stays if an unfinished job has it as a blocker, if this transaction has not locked
-- all of its rows and of those that refer to it, or if it closed, or became stale, at `closed_before` or later. All is
-- one statement because foreign keys are checked when it ends; the entries of the chain's own jobs are deleted by the
-- foreign keys. That a stale chain is deleted is an event.
WITH held AS MATERIALIZED (
    SELECT unnest(%(locked)s::text[]) AS id
),
to_delete AS MATERIALIZED (
    SELECT root.id, root.stale
    FROM unnest(%(ids)s::text[], %(closed)s::timestamptz[], %(expires)s::timestamptz[]) AS params (id, closed_at, expires_at)
    CROSS JOIN LATERAL (
        SELECT id, coalesce(stale_at >= chain_closed_at, false) AS stale FROM {schema}.job
        WHERE job.id = params.id AND chain_index = 0 AND chain_status <> 'open' AND chain_closed_at = params.closed_at
            AND expires_at IS NOT DISTINCT FROM params.expires_at
            AND (greatest(chain_closed_at, stale_at) >= %(closed_before)s::timestamptz) IS NOT TRUE
        OFFSET 0
    ) AS root
    WHERE root.id IN (SELECT id FROM held)
        AND NOT EXISTS (
            SELECT FROM {schema}.job AS following
            WHERE following.chain_id = root.id AND chain_index > 0 AND following.id NOT IN (SELECT id FROM held))
        AND NOT EXISTS (
            SELECT FROM {schema}.job_blocker AS entry
            WHERE entry.blocker_chain_id = root.id
                AND (entry.job_id NOT IN (SELECT id FROM held)
                     OR (SELECT status FROM {schema}.job AS waiting WHERE waiting.id = entry.job_id)
                        IN ('blocked', 'scheduled', 'ready', 'running')))
),
member AS MATERIALIZED (
    SELECT id FROM to_delete
    UNION ALL
    SELECT following.id
    FROM to_delete
    CROSS JOIN LATERAL (
        SELECT job.id FROM {schema}.job WHERE job.chain_id = to_delete.id AND job.chain_index > 0 OFFSET 0
    ) AS following
),
entry AS (
    DELETE FROM {schema}.job_blocker
    WHERE ctid = ANY (ARRAY(
        SELECT naming.tid
        FROM to_delete
        CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM {schema}.job_blocker WHERE blocker_chain_id = to_delete.id OFFSET 0
        ) AS naming))
),
deleted AS (
    DELETE FROM {schema}.job WHERE id = ANY (ARRAY(SELECT id FROM member))
    RETURNING id, chain_id, chain_index, status, type, chain_type, attempt, scheduled_at, started_at, deduplication_key,
        created_at, attributes
),
event AS (
    {insert_event}
    SELECT 'deleted', {event_columns}, NULL, NULL
    FROM deleted
    WHERE chain_id IN (SELECT id FROM to_delete WHERE stale) AND {event_level:deleted.type} <> 'off'
)
SELECT {deleted_columns}
FROM deleted
