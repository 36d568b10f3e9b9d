-- Forget a worker that has stopped.
DELETE FROM {schema}.worker WHERE id = %(id)s::text
RETURNING id
