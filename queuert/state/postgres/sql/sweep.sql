-- A page of blocked jobs, by id, and which of them wait for nothing: none of their open entries is of an open chain. The look
-- at one job stops at the first that is. One snapshot shows the end of a chain together with the release that it brings.
SELECT page.id, waits.found IS NULL AS stranded
FROM (
    SELECT id FROM {schema}.job
    WHERE status = 'blocked' AND (%(cursor)s::text IS NULL OR id > %(cursor)s::text)
    ORDER BY id LIMIT %(limit)s
) AS page
LEFT JOIN LATERAL (
    SELECT true AS found FROM {schema}.job_blocker
    WHERE job_id = page.id AND NOT closed
        AND (SELECT chain_status FROM {schema}.job AS chain WHERE chain.id = blocker_chain_id) = 'open'
    LIMIT 1
) AS waits ON true
ORDER BY page.id
