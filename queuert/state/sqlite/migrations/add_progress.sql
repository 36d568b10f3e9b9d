-- From version 1 to 2: how far the last attempt is.
ALTER TABLE queuert_job ADD COLUMN progress TEXT
