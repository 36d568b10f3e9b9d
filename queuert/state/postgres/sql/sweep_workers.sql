-- Forget workers whose time is over. One that is beating just now, or that somebody else sweeps, is passed over.
DELETE FROM {schema}.worker
WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.worker WHERE expires_at <= clock_timestamp() ORDER BY id FOR UPDATE SKIP LOCKED
))
RETURNING id
