-- The types of all chains, by jumping from one to the next.
WITH RECURSIVE known (type) AS (
    SELECT min(type) FROM queuert_job WHERE chain_index = 0
    UNION ALL
    SELECT (SELECT min(job.type) FROM queuert_job AS job WHERE chain_index = 0 AND job.type > known.type)
    FROM known WHERE type IS NOT NULL
)
SELECT type FROM known WHERE type IS NOT NULL
