-- Attempts that began before the window of their type; not all at once.
DELETE FROM queuert_limit_start WHERE rowid IN (
    SELECT rowid FROM queuert_limit_start WHERE type = :type AND started_at <= :since LIMIT 1000)
