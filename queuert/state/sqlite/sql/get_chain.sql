-- A chain. One that has expired by now is gone, whether it has been deleted yet or not.
SELECT id, type, status, input, CASE WHEN status = 'completed' THEN output END, error, tail_type, created_at, closed_at,
    tail_id, expires_at, attributes
FROM queuert_chain WHERE id = :id AND (:now IS NULL OR expires_at IS NULL OR expires_at > :now)
