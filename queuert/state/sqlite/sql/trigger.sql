-- A scheduled job is due now.
UPDATE queuert_job SET status = 'ready', scheduled_at = min(scheduled_at, :now) WHERE id = :id AND status = 'scheduled'
