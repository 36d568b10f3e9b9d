-- The time, by the clock that decides what is due.
SELECT clock_timestamp()
