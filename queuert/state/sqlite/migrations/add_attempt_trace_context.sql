-- From version 2 to 3: the trace context of the newest attempt.
ALTER TABLE queuert_job ADD COLUMN attempt_trace_context TEXT
