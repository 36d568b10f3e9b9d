-- From version 6 to 7: the attempts that the start of a job allows.
ALTER TABLE queuert_job ADD COLUMN max_attempts INTEGER
