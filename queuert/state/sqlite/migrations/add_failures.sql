-- From version 4 to 5: the failed attempts.
ALTER TABLE queuert_job ADD COLUMN failures TEXT
