-- Jobs of chosen ids, as they are, and whether they are chains that have expired.
SELECT id, type, status, created_at, chain_index, coalesce(expires_at <= clock_timestamp(), false),
    chain_status
FROM {schema}.job WHERE id = ANY (%(ids)s::text[])
