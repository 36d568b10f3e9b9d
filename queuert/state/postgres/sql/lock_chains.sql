-- Lock chains by their first job together with their last, the chains that new jobs are about to wait for, and (`again`)
-- the open ones that the last jobs have as blockers; the oldest first. What is returned is each row as it stands under the
-- lock: a last job that has continued while we waited says so, and is looked for anew.
WITH tail AS MATERIALIZED (
    SELECT coalesce(last.id, asked.id) AS id
    FROM unnest(%(ids)s::text[]) AS asked (id)
    LEFT JOIN LATERAL (
        SELECT job.id FROM {schema}.job WHERE job.chain_id = asked.id AND chain_index > 0
        ORDER BY chain_index DESC LIMIT 1
    ) AS last ON true
),
awaited AS MATERIALIZED (
    SELECT unnest(%(awaited)s::text[]) AS id
    UNION
    SELECT blocker_chain_id
    FROM tail JOIN {schema}.job_blocker ON job_id = tail.id
    WHERE %(again)s AND (SELECT chain_status FROM {schema}.job AS chain WHERE chain.id = blocker_chain_id) = 'open'
),
locked AS MATERIALIZED (
    SELECT id, chain_id, chain_index, type, chain_type, chain_status, status, scheduled_at
    FROM {schema}.job
    WHERE id = ANY (ARRAY(
        SELECT id FROM tail UNION SELECT id FROM awaited UNION SELECT unnest(%(ids)s::text[])))
    ORDER BY created_at, id FOR NO KEY UPDATE
),
noted AS (
    UPDATE {schema}.job SET has_dependents = true
    FROM locked
    WHERE job.id = locked.id AND locked.id IN (SELECT id FROM awaited) AND NOT job.has_dependents
)
SELECT id, chain_id, chain_index, type, chain_type, chain_status,
    CASE WHEN status = 'scheduled' AND scheduled_at <= clock_timestamp() THEN 'ready' ELSE status END
FROM locked
