SELECT id, type, status, input::text, CASE WHEN status = 'completed' THEN output::text END, error::text, tail_type,
    created_at, closed_at, tail_id
FROM {schema}.chain WHERE id = ANY (%(ids)s::text[])
