-- A page of the jobs that have a chain among their blockers, by their ids, the last first.
-- Nothing lies between the id of the chain and the same with the lowest character after it: that is the bound of the first page.
WITH page AS MATERIALIZED (
    SELECT job_id FROM {schema}.job_blocker
    WHERE (blocker_chain_id, job_id) > (%(chain)s::text, %(low)s::text)
        AND (blocker_chain_id, job_id) < (%(high_chain)s::text, %(high)s::text)
    ORDER BY blocker_chain_id DESC, job_id DESC LIMIT %(limit)s::bigint
)
SELECT id, type, chain_id, chain_index,
    CASE WHEN status = 'scheduled' AND scheduled_at <= clock_timestamp() THEN 'ready' ELSE status END,
    priority, attempt, uncounted, lease_expirations, open_blockers, input::text, output::text, error::text,
    created_at, scheduled_at, started_at, finished_at, holder, lease_expires_at, continued_by,
    deduplication_key, limit_key, progress
FROM {schema}.job WHERE id = ANY (ARRAY(SELECT job_id FROM page))
ORDER BY id DESC
