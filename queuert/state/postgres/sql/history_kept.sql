-- Which of these chains are there still, and why they were not deleted. One of the same id that was started later is another.
SELECT root.id,
    CASE
        WHEN root.chain_status = 'open' OR root.chain_closed_at IS DISTINCT FROM asked.closed_at
            OR root.expires_at IS DISTINCT FROM asked.expires_at THEN 'changed'
        WHEN EXISTS (
            SELECT FROM {schema}.job_blocker AS entry
            JOIN {schema}.job AS waiting ON waiting.id = entry.job_id
            WHERE entry.blocker_chain_id = root.id
                AND waiting.status IN ('blocked', 'scheduled', 'ready', 'running')) THEN 'waited_for'
        ELSE 'busy'
    END
FROM unnest(%(ids)s::text[], %(created)s::timestamptz[], %(closed)s::timestamptz[], %(expires)s::timestamptz[])
    AS asked (id, created_at, closed_at, expires_at)
CROSS JOIN LATERAL (
    SELECT id, chain_status, chain_closed_at, expires_at FROM {schema}.job
    WHERE job.id = asked.id AND chain_index = 0 AND job.created_at = asked.created_at
    OFFSET 0
) AS root
