-- Lease the best due jobs of the wanted types, up to the limit.
--
-- First look without locks at the head of each type, to learn how many of each belong to the best; then lock just
-- those, passing over what others hold; make up for what is missing then from any type. All steps read at most `limit`
-- entries a type from an index, whatever the backlog. Paused types are left out. statement_timestamp() is stable, so that
-- it can bound the index scan; leases are dated by clock_timestamp(), since the statement may have waited.
WITH wanted AS MATERIALIZED (
    SELECT * FROM unnest(%(types)s::text[], %(leases)s::float8[]) AS w (type, lease_seconds)
),
-- Apart from them, since the plan of the update hangs on how many types are expected there.
unpaused AS MATERIALIZED (
    SELECT wanted.type FROM wanted
    WHERE NOT EXISTS (SELECT FROM {schema}.paused_type WHERE paused_type.type = wanted.type)
),
best AS MATERIALIZED (
    SELECT unpaused.type, head.due
    FROM unpaused
    CROSS JOIN LATERAL (
        (SELECT false AS due, attempt - uncounted - lease_expirations - priority AS rank, scheduled_at
         FROM {schema}.job
         WHERE job.type = unpaused.type AND status = 'ready'
         ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at LIMIT %(limit)s)
        UNION ALL
        (SELECT true, attempt - uncounted - lease_expirations - priority, scheduled_at
         FROM {schema}.job
         WHERE job.type || '' = unpaused.type AND status = 'scheduled' AND scheduled_at <= statement_timestamp()
         ORDER BY scheduled_at LIMIT %(limit)s)
    ) AS head
    ORDER BY head.rank, head.scheduled_at
    LIMIT %(limit)s
),
shares AS (
    SELECT type, count(*) FILTER (WHERE NOT due) AS ready, count(*) FILTER (WHERE due) AS due FROM best GROUP BY type
),
locked AS MATERIALIZED (
    SELECT ready.tid
    FROM shares
    CROSS JOIN LATERAL (
        SELECT job.ctid AS tid
        FROM {schema}.job
        WHERE job.type = shares.type AND status = 'ready'
        ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at LIMIT shares.ready FOR UPDATE SKIP LOCKED
    ) AS ready
    UNION ALL
    SELECT due.tid
    FROM shares
    CROSS JOIN LATERAL (
        SELECT job.ctid AS tid
        FROM {schema}.job
        WHERE job.type || '' = shares.type AND status = 'scheduled' AND scheduled_at <= statement_timestamp()
        ORDER BY scheduled_at LIMIT shares.due FOR UPDATE SKIP LOCKED
    ) AS due
),
short AS (
    SELECT (SELECT count(*) FROM best) - (SELECT count(*) FROM locked) AS missing
),
spare AS (
    SELECT other.tid
    FROM short
    CROSS JOIN unpaused
    CROSS JOIN LATERAL (
        SELECT job.ctid AS tid
        FROM {schema}.job
        WHERE job.type = unpaused.type AND status = 'ready' AND job.ctid <> ALL (ARRAY(SELECT tid FROM locked))
        ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at LIMIT short.missing FOR UPDATE SKIP LOCKED
    ) AS other
    LIMIT (SELECT missing FROM short)
)
UPDATE {schema}.job
SET status = 'running',
    attempt = attempt + 1,
    started_at = clock_timestamp(),
    lease_expires_at = clock_timestamp() + wanted.lease_seconds * interval '1 second',
    lease_token = %(token)s::uuid,
    holder = %(holder)s
FROM wanted
WHERE job.ctid = ANY (ARRAY(SELECT tid FROM locked UNION ALL SELECT tid FROM spare))
    AND job.type = wanted.type
RETURNING job.id, job.type, job.chain_id, job.chain_type, job.chain_index, job.priority, job.attempt,
    job.uncounted, job.lease_expirations, job.blocker_count, job.has_dependents, job.input::text,
    job.created_at, job.scheduled_at, job.started_at, wanted.lease_seconds, job.trace_context,
    job.result_ttl
