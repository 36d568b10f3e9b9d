-- For who would not wait: long enough for another statement's lock, too short for a transaction that a caller holds. Who
-- would wait, and sends all of a transaction in one round trip, says here for how long, and how long it may stand idle: the
-- server may have got no more than its beginning.
SELECT set_config('lock_timeout', coalesce(%(lock)s, current_setting('lock_timeout')), true),
    set_config('idle_in_transaction_session_timeout', %(idle)s, true)
