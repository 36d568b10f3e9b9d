-- Extend the leases that are still held. No index has the lease's end, so the new row version is heap-only.
UPDATE {schema}.job
SET lease_expires_at = clock_timestamp() + asked.seconds * interval '1 second'
FROM unnest(%(ids)s::text[], %(tokens)s::uuid[], %(seconds)s::float8[]) AS asked (id, token, seconds)
WHERE job.id = asked.id AND job.lease_token = asked.token AND job.lease_expires_at IS NOT NULL
RETURNING job.id
