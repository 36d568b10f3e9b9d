-- Lock all jobs of the chains that are to be deleted, the oldest first; with `cascade` also of the chains that any of these
-- jobs waited for, and so on down, each once. OFFSET 0 keeps the planner, which cannot know how few they are, from joining
-- with the whole tables; `id = chain_id` is a first job, said so that no partial index of all of them is read for it.
WITH RECURSIVE doomed AS (
    SELECT id FROM {schema}.job WHERE id = ANY (%(ids)s::text[]) AND id = chain_id
    UNION
    SELECT blocker.id
    FROM doomed
    CROSS JOIN LATERAL (
        SELECT blocker_chain_id AS id FROM {schema}.job_blocker
        WHERE job_id = ANY (ARRAY(
            SELECT doomed.id
            UNION ALL
            SELECT job.id FROM {schema}.job WHERE job.chain_id = doomed.id AND job.chain_index > 0))
        OFFSET 0
    ) AS blocker
    WHERE %(cascade)s
),
member AS MATERIALIZED (
    SELECT id FROM doomed
    UNION ALL
    SELECT following.id
    FROM doomed
    CROSS JOIN LATERAL (
        SELECT job.id FROM {schema}.job WHERE job.chain_id = doomed.id AND job.chain_index > 0 OFFSET 0
    ) AS following
)
SELECT id, chain_id FROM {schema}.job
WHERE id = ANY (ARRAY(SELECT id FROM member))
ORDER BY created_at, id FOR UPDATE
