-- Extend the leases that are still held. A row that some transaction has locked is passed over rather than waited for:
-- one held job must not cost the others their leases. No index has the lease's end, so the new version is heap-only.
WITH free AS MATERIALIZED (
    SELECT job.id, asked.seconds
    FROM unnest(%(ids)s::text[], %(tokens)s::uuid[], %(seconds)s::float8[]) AS asked (id, token, seconds)
    JOIN {schema}.job ON job.id = asked.id AND job.lease_token = asked.token AND job.lease_expires_at IS NOT NULL
    ORDER BY job.id FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE {schema}.job
SET lease_expires_at = clock_timestamp() + free.seconds * interval '1 second'
FROM free
WHERE job.id = free.id
RETURNING job.id, job.lease_token::text
