-- A closed chain goes on.
UPDATE queuert_job SET chain_status = 'open', chain_closed_at = NULL, expires_at = NULL WHERE id = :id
