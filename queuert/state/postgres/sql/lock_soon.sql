-- For who would not wait: long enough for another statement's lock, too short for a transaction that a caller holds.
SELECT set_config('lock_timeout', '50ms', true)
