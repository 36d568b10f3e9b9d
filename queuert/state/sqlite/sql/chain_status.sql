-- How a chain stands, without its payloads. One that has expired by now is gone.
SELECT chain_status FROM queuert_job WHERE id = :id AND chain_index = 0 AND (expires_at IS NULL OR expires_at > :now)
