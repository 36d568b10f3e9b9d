-- All job types, by jumping from one to the next.
WITH RECURSIVE known (type) AS (
    SELECT min(type) FROM queuert_job
    UNION ALL
    SELECT (SELECT min(job.type) FROM queuert_job AS job WHERE job.type > known.type) FROM known WHERE type IS NOT NULL
)
SELECT type FROM known WHERE type IS NOT NULL
