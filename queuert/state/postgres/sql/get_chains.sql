-- Chains of these ids. One that has expired is gone, whether it has been deleted yet or not.
SELECT id, type, status, input::text, CASE WHEN status = 'completed' THEN output::text END, error::text, tail_type,
    created_at, closed_at, tail_id, expires_at, attributes::text
FROM {schema}.chain WHERE id = ANY (%(ids)s::text[]) AND (expires_at IS NULL OR expires_at > clock_timestamp())
