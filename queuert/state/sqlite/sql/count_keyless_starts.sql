-- Attempts of jobs of a type without a limit key that have begun since a moment.
SELECT count(*) FROM queuert_limit_start WHERE type = :type AND limit_key IS NULL AND started_at > :since
