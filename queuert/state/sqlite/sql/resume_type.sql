-- Let a job type go on.
DELETE FROM queuert_paused_type WHERE type = :type
