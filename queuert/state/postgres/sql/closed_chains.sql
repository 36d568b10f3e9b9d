-- Chains of these ids, as get_chains reads them: those that have closed, as many as fit into a portion of so many bytes, one
-- at least. Of the others the status alone: who waits for thousands of large ones must not read them at every look. Sizes
-- are those of what is stored, compressed or not, which needs no reading of it.
SELECT id, type, status, CASE WHEN fits THEN input::text END,
    CASE WHEN fits AND status = 'completed' THEN output::text END, CASE WHEN fits THEN error::text END, tail_type,
    created_at, closed_at, tail_id, expires_at, CASE WHEN fits THEN attributes::text END
FROM (
    SELECT *, status <> 'open' AND coalesce(sum(size) OVER (ORDER BY status = 'open', id COLLATE "C"
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) < %(portion)s AS fits
    FROM (
        SELECT *, CASE WHEN status = 'open' THEN 0 ELSE pg_column_size(input) + coalesce(pg_column_size(output), 0)
            + coalesce(pg_column_size(error), 0) + coalesce(pg_column_size(attributes), 0) END AS size
        FROM {schema}.chain WHERE id = ANY (%(ids)s::text[]) AND (expires_at IS NULL OR expires_at > clock_timestamp())
    ) AS sized
) AS measured
