-- Let closed chains expire some seconds from now. One that has expired is gone; an open one is told of and left as it is.
WITH locked AS MATERIALIZED (
    SELECT id, chain_status FROM {schema}.job
    WHERE id = ANY (%(ids)s::text[]) AND chain_index = 0 AND (expires_at IS NULL OR expires_at > clock_timestamp())
    ORDER BY created_at, id FOR NO KEY UPDATE
),
done AS (
    UPDATE {schema}.job SET expires_at = clock_timestamp() + %(seconds)s::float8 * interval '1 second'
    WHERE id = ANY (ARRAY(SELECT id FROM locked WHERE chain_status <> 'open'))
)
SELECT id, chain_status FROM locked
