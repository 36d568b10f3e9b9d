-- When the newest job was created.
SELECT max(created_at) FROM queuert_job
