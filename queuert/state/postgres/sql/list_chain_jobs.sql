-- A page of the jobs of a chain, the last first. The first job is not in the index job_chain: its id is the chain's.
-- The bounds are of chain and index together, so that a chain of any length is read in this order and never sorted.
WITH page AS MATERIALIZED (
    SELECT id FROM (
        SELECT id, chain_index FROM {schema}.job
        WHERE id = %(chain)s AND chain_index = 0 AND 0 > %(low)s::integer AND 0 < %(high)s::integer
        UNION ALL
        (
            SELECT id, chain_index FROM {schema}.job
            WHERE chain_index > 0 AND (chain_id, chain_index) > (%(chain)s::text, %(low)s::integer)
                AND (chain_id, chain_index) < (%(chain)s::text, %(high)s::integer)
            ORDER BY chain_id DESC, chain_index DESC LIMIT %(limit)s::bigint
        )
    ) AS entry
    ORDER BY chain_index DESC LIMIT %(limit)s::bigint
)
SELECT id, type, chain_id, chain_index,
    CASE WHEN status = 'scheduled' AND scheduled_at <= clock_timestamp() THEN 'ready' ELSE status END,
    priority, attempt, uncounted, lease_expirations, open_blockers, input::text, output::text, error::text,
    created_at, scheduled_at, started_at, finished_at, holder, lease_expires_at, continued_by,
    deduplication_key, limit_key, progress
FROM {schema}.job WHERE id = ANY (ARRAY(SELECT page.id FROM page))
ORDER BY chain_index DESC
