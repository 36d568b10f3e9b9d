-- Give back all that one claim took and nobody started, found by its token among the running jobs of its types.
UPDATE {schema}.job
SET status = 'ready', attempt = attempt - 1, lease_token = NULL, lease_expires_at = NULL
WHERE status = 'running' AND type = ANY (%(types)s::text[]) AND lease_token = %(token)s::uuid
RETURNING id
