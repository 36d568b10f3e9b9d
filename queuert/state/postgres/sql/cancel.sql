-- Cancel the last jobs of chains, and the chains with them. All are locked and known to be open. Without its token a
-- running attempt cannot end any more.
WITH done AS (
    UPDATE {schema}.job
    SET status = 'cancelled',
        finished_at = clock_timestamp(),
        chain_status = CASE WHEN chain_index = 0 THEN 'cancelled' END,
        chain_closed_at = CASE WHEN chain_index = 0 THEN clock_timestamp() END,
        expires_at = CASE WHEN chain_index = 0 THEN clock_timestamp() + result_ttl * interval '1 second' END,
        lease_token = NULL,
        lease_expires_at = NULL,
        error = jsonb_build_object('kind', 'cancel', 'message', %(reason)s::text)
    WHERE id = ANY (%(tails)s::text[])
    RETURNING chain_id, chain_index
)
UPDATE {schema}.job
SET chain_status = 'cancelled', chain_closed_at = clock_timestamp(),
    expires_at = clock_timestamp() + result_ttl * interval '1 second'
FROM done
WHERE job.id = done.chain_id AND done.chain_index > 0
RETURNING job.id
