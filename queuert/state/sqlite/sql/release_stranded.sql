-- A blocked job that waits for nothing any more.
UPDATE queuert_job SET status = :status, open_blockers = 0, scheduled_at = max(scheduled_at, :now) WHERE id = :id
