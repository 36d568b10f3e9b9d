-- The newest chain that stands in for each start of a deduplication key. Open ones have an index of their own, so that a
-- key with a long history costs no more than a new one. statement_timestamp() is stable, so that it can bound the scan; the
-- statement waits for no lock. The order names all columns of these indexes, and only theirs, so that no other one will do.
WITH asked AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(keys)s::json)
        AS k (place int, type text, key text, only_open bool, seconds float8, excluding jsonb)
)
SELECT asked.place, found.id, found.type, found.status, found.created_at, found.chain_status
FROM asked
CROSS JOIN LATERAL (
    (SELECT id, type, status, created_at, chain_status FROM {schema}.job
     WHERE asked.only_open AND job.type = asked.type AND deduplication_key = asked.key AND chain_status = 'open'
        AND created_at >= coalesce(statement_timestamp() - asked.seconds * interval '1 second', '-infinity')
        AND NOT asked.excluding ? job.id
     ORDER BY type DESC, deduplication_key DESC, created_at DESC LIMIT 1)
    UNION ALL
    (SELECT id, type, status, created_at, chain_status FROM {schema}.job
     WHERE NOT asked.only_open AND job.type = asked.type AND deduplication_key = asked.key
        AND (expires_at IS NULL OR expires_at > statement_timestamp())
        AND created_at >= coalesce(statement_timestamp() - asked.seconds * interval '1 second', '-infinity')
        AND NOT asked.excluding ? job.id
     ORDER BY type DESC, deduplication_key DESC, created_at DESC LIMIT 1)
) AS found
