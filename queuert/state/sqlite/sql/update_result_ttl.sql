-- Let a closed chain expire at a moment.
UPDATE queuert_job SET expires_at = :expires WHERE id = :id
