-- Delete starts that the window of their type has left, the oldest first, some at a time.
DELETE FROM {schema}.limit_start
WHERE ctid = ANY (ARRAY(
    SELECT old.tid
    FROM unnest(%(types)s::text[], %(windows)s::float8[], %(limits)s::int[]) AS rated (type, seconds, most)
    CROSS JOIN LATERAL (
        SELECT limit_start.ctid AS tid
        FROM {schema}.limit_start
        WHERE limit_start.type = rated.type
            AND started_at <= statement_timestamp() - rated.seconds * interval '1 second'
        ORDER BY started_at LIMIT rated.most FOR UPDATE SKIP LOCKED
    ) AS old
))
RETURNING type
