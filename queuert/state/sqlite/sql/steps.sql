-- name: record_step
-- Records a step of a job.
INSERT INTO queuert_job_step (job_id, number, name, attempt, recorded_at, wake_at, result)
VALUES (:id, :number, :name, :attempt, :now, :wake_at, :result)

-- name: get_steps
-- Reads the steps of a job.
SELECT number, name, attempt, recorded_at, result, wake_at FROM queuert_job_step WHERE job_id = :id ORDER BY number

-- name: delete_steps
-- Deletes the steps of a chain's jobs.
DELETE FROM queuert_job_step WHERE job_id IN (SELECT id FROM queuert_job WHERE chain_id = :id)
