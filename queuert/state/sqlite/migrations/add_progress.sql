-- From version 1 to 2: the progress of the last attempt.
ALTER TABLE queuert_job ADD COLUMN progress TEXT
