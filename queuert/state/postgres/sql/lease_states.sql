-- Who holds, or ended, each of these jobs.
SELECT id, status, lease_token::text, lease_expires_at IS NOT NULL FROM {schema}.job WHERE id = ANY (%(ids)s::text[])
