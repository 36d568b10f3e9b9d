-- Write the chains of ticks that are not there; return all of them, and whether they were.
WITH asked AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(jobs)s::json)
        AS new (id text, type text, priority int, input jsonb, limit_key text)
),
written AS (
    INSERT INTO {schema}.job (id, type, chain_id, chain_type, chain_status, status, priority, input, limit_key)
    SELECT id, type, id, type, 'open', 'ready', priority, coalesce(input, 'null'), limit_key
    FROM asked
    ORDER BY id COLLATE "C"
    ON CONFLICT (id) DO NOTHING
    RETURNING id, type, status, created_at, scheduled_at
),
noted AS (
    INSERT INTO {schema}.job_event (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at)
    SELECT 'created', status, id, id, 0, type, type, 0, scheduled_at
    FROM written
    WHERE coalesce((SELECT level FROM {schema}.event_level AS own WHERE own.type = written.type),
                   (SELECT level FROM {schema}.event_log)) = 'all'
)
SELECT id, type, status, created_at, false FROM written
UNION ALL
SELECT id, type, status, created_at, true FROM {schema}.job WHERE id = ANY (ARRAY(SELECT id FROM asked))
