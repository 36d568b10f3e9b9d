-- Jobs of chosen ids, as they are.
SELECT id, type, status, created_at, chain_index FROM {schema}.job WHERE id = ANY (%(ids)s::text[])
