-- Lock all jobs of chains that are to go, and the jobs that have them as blockers, the oldest first, and pass over what others
-- hold. Whether a chain may go is looked at afterwards, with a younger snapshot.
WITH about AS MATERIALIZED (
    SELECT unnest(%(ids)s::text[]) AS id
),
member AS MATERIALIZED (
    SELECT id FROM about
    UNION ALL
    SELECT following.id
    FROM about
    CROSS JOIN LATERAL (
        SELECT job.id FROM {schema}.job WHERE job.chain_id = about.id AND job.chain_index > 0 OFFSET 0
    ) AS following
    UNION ALL
    SELECT waiting.id
    FROM about
    CROSS JOIN LATERAL (
        SELECT job_id AS id FROM {schema}.job_blocker WHERE blocker_chain_id = about.id OFFSET 0
    ) AS waiting
)
SELECT id FROM {schema}.job WHERE id = ANY (ARRAY(SELECT id FROM member))
ORDER BY created_at, id FOR UPDATE SKIP LOCKED
