-- Extend the leases that are still held. A row that some transaction has locked is passed over rather than waited for:
-- one held job must not cost the others their leases, and no order of locks is needed. What attempts tell of their progress
-- goes with it. No index has the lease's end, so the new version is heap-only.
--
-- Of a row that was passed over, though the lease holds it, the lease is extended beside it, for the reaper to read: who has
-- locked the row may have it for longer than the lease lasts, and the reaper may be there first when it is free again.
WITH free AS MATERIALIZED (
    SELECT job.id, asked.seconds, asked.progress
    FROM unnest(%(ids)s::text[], %(tokens)s::uuid[], %(seconds)s::float8[], %(progress)s::text[])
        AS asked (id, token, seconds, progress)
    JOIN {schema}.job ON job.id = asked.id AND job.lease_token = asked.token AND job.lease_expires_at IS NOT NULL
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
extended AS (
    INSERT INTO {schema}.lease_extension (job_id, lease_token, expires_at)
    SELECT DISTINCT ON (job.id) job.id, job.lease_token, clock_timestamp() + asked.seconds * interval '1 second'
    FROM unnest(%(ids)s::text[], %(tokens)s::uuid[], %(seconds)s::float8[]) AS asked (id, token, seconds)
    JOIN {schema}.job ON job.id = asked.id AND job.lease_token = asked.token AND job.lease_expires_at IS NOT NULL
    WHERE (SELECT count(*) FROM free) < cardinality(%(ids)s::text[]) AND asked.id NOT IN (SELECT id FROM free)
    ORDER BY job.id
    ON CONFLICT (job_id) DO UPDATE SET lease_token = excluded.lease_token, expires_at = excluded.expires_at
)
UPDATE {schema}.job
SET lease_expires_at = clock_timestamp() + free.seconds * interval '1 second',
    progress = coalesce(free.progress, job.progress)
FROM free
WHERE job.id = free.id
RETURNING job.id, job.lease_token::text
