-- Who holds, or ended, a job.
SELECT id, status, lease_token, lease_expires_at IS NOT NULL FROM queuert_job WHERE id = :id
