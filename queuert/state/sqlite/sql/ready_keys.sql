-- The limit keys of a type that have ready jobs, from one on, by jumping from one to the next; with each how many of its jobs
-- run, and how many have begun since a moment. A key without ready jobs ends it.
WITH RECURSIVE found (key, place) AS (
    SELECT min(limit_key), 1 FROM queuert_job WHERE type = :type AND status = 'ready' AND limit_key > :from
    UNION ALL
    SELECT (SELECT min(limit_key) FROM queuert_job
            WHERE type = :type AND status = 'ready' AND limit_key > found.key), place + 1
    FROM found WHERE key IS NOT NULL AND place < :limit
)
SELECT key,
    CASE WHEN :per_key THEN (SELECT count(*) FROM queuert_job
                             WHERE type = :type AND status = 'running' AND limit_key = key) ELSE 0 END,
    CASE WHEN :rated THEN (SELECT count(*) FROM queuert_limit_start
                           WHERE type = :type AND limit_key = key AND started_at > :since) ELSE 0 END
FROM found WHERE key IS NOT NULL
