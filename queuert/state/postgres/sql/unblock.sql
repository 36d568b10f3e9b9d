-- Release the jobs that waited for chains which have closed. Runs after the statement that closed them, in its
-- transaction: a snapshot taken before the chain was locked could miss a job that had just begun to wait. Each chain's
-- entries are looked up by themselves (OFFSET 0), and rows are named one by one: tables that have grown since their
-- statistics were gathered must not be read whole.
WITH marked AS (
    UPDATE {schema}.job_blocker SET closed = true
    WHERE ctid = ANY (ARRAY(
        SELECT entry.tid
        FROM unnest(%(chains)s::text[]) AS about (id)
        CROSS JOIN LATERAL (
            SELECT id FROM {schema}.job WHERE job.id = about.id AND chain_status <> 'open' OFFSET 0
        ) AS chain
        CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM {schema}.job_blocker WHERE blocker_chain_id = chain.id AND NOT closed OFFSET 0
        ) AS entry))
    RETURNING job_id
),
counted AS MATERIALIZED (
    SELECT job_id, count(*) AS closed FROM marked GROUP BY job_id
),
locked AS MATERIALIZED (
    SELECT id, status AS was FROM {schema}.job
    WHERE id = ANY (ARRAY(SELECT job_id FROM counted)) ORDER BY created_at, id FOR NO KEY UPDATE
),
done AS (
    UPDATE {schema}.job
    SET open_blockers = open_blockers - counted.closed,
        scheduled_at = CASE WHEN open_blockers = counted.closed AND status = 'blocked'
                            THEN greatest(scheduled_at, clock_timestamp()) ELSE scheduled_at END,
        status = CASE WHEN open_blockers > counted.closed OR status <> 'blocked' THEN status
                      WHEN scheduled_at > clock_timestamp() THEN 'scheduled'
                      ELSE 'ready' END
    FROM locked JOIN counted ON counted.job_id = locked.id
    WHERE job.id = locked.id AND job.id = ANY (ARRAY(SELECT id FROM locked))
    RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt, job.scheduled_at,
        job.started_at, locked.was
),
noted AS (
    INSERT INTO {schema}.job_event
        (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, worker, error)
    SELECT 'unblocked', status, id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at,
        NULL, NULL
    FROM done
    WHERE was = 'blocked' AND status <> 'blocked'
        AND coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = done.type),
                   (SELECT level FROM {schema}.event_log)) = 'all'
)
SELECT type, status FROM done
