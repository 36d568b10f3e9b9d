-- The next ids of the chains of a bulk write, from the index on it.
SELECT id FROM {schema}.job WHERE write_id = %(write_id)s AND id > %(after)s ORDER BY id LIMIT %(limit)s
