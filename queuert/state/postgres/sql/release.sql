-- Give back jobs that were claimed and not started. The attempt never was.
UPDATE {schema}.job
SET status = 'ready', attempt = attempt - 1, lease_token = NULL, lease_expires_at = NULL
FROM unnest(%(ids)s::text[], %(tokens)s::uuid[]) AS asked (id, token)
WHERE job.id = asked.id AND job.lease_token = asked.token AND job.lease_expires_at IS NOT NULL
RETURNING job.id
