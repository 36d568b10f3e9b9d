-- A hint behind a start, in a transaction of its own. Nobody needs it after a crash, so it does not wait for the disk; and as
-- the caller waits for it, it does not wait long for the lock of all that notify either: who is refused sends it later.
SELECT set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '50ms', true),
    pg_notify(%(channel)s, %(payload)s)
