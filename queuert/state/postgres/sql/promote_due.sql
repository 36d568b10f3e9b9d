-- Make scheduled jobs ready whose time has come, the longest due first, so that the indexes by key show them.
UPDATE {schema}.job
SET status = 'ready'
WHERE ctid = ANY (ARRAY(
    SELECT due.tid
    FROM unnest(%(types)s::text[]) AS limited (type)
    CROSS JOIN LATERAL (
        SELECT job.ctid AS tid
        FROM {schema}.job
        WHERE job.type || '' = limited.type AND status = 'scheduled' AND scheduled_at <= statement_timestamp()
        ORDER BY scheduled_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS due
))
RETURNING id
