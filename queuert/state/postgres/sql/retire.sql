-- Delete closed chains that are as they were when they were chosen, with all their jobs, and their entries as blockers of jobs
-- that have ended. A chain is let be if a job that has not ended has it as a blocker, or if some row of it, or of those that
-- name it, was not locked before by this transaction. All goes in one statement, since foreign keys are checked when it ends;
-- the entries of its own jobs go with them by the same keys.
WITH held AS MATERIALIZED (
    SELECT unnest(%(locked)s::text[]) AS id
),
doomed AS MATERIALIZED (
    SELECT root.id
    FROM unnest(%(ids)s::text[], %(closed)s::timestamptz[], %(expires)s::timestamptz[]) AS asked (id, closed_at, expires_at)
    CROSS JOIN LATERAL (
        SELECT id FROM {schema}.job
        WHERE job.id = asked.id AND chain_index = 0 AND chain_status <> 'open' AND chain_closed_at = asked.closed_at
            AND expires_at IS NOT DISTINCT FROM asked.expires_at
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
    SELECT id FROM doomed
    UNION ALL
    SELECT following.id
    FROM doomed
    CROSS JOIN LATERAL (
        SELECT job.id FROM {schema}.job WHERE job.chain_id = doomed.id AND job.chain_index > 0 OFFSET 0
    ) AS following
),
entry AS (
    DELETE FROM {schema}.job_blocker
    WHERE ctid = ANY (ARRAY(
        SELECT naming.tid
        FROM doomed
        CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM {schema}.job_blocker WHERE blocker_chain_id = doomed.id OFFSET 0
        ) AS naming))
)
DELETE FROM {schema}.job WHERE id = ANY (ARRAY(SELECT id FROM member))
RETURNING id, chain_id, status, type, deduplication_key,
    CASE WHEN attributes IS NOT NULL THEN created_at END, attributes::text
