-- One at a time for each output; until the transaction ends, which holds nothing else.
SELECT pg_try_advisory_xact_lock(hashtextextended(%(name)s::text, 7241900315))
