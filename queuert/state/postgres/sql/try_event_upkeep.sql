-- Be the one who looks after the event log, to the end of the transaction; wait for nobody for long in it.
SELECT pg_try_advisory_xact_lock(1363498580, hashtext('{schema} events')), set_config('lock_timeout', '100ms', true)
