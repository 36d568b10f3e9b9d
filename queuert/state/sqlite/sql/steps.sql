-- name: record_step
-- Records a step of a job.
INSERT INTO queuert_job_step (job_id, number, name, attempt, recorded_at, wake_at, result, event, started_at)
VALUES (:id, :number, :name, :attempt, :now, :wake_at, :result, :event, :started_at)

-- name: set_progress
-- Stores the progress of a job.
UPDATE queuert_job SET progress = :progress WHERE id = :id

-- name: get_progress
-- Reads the progress of a job.
SELECT progress FROM queuert_job WHERE id = :id

-- name: get_steps
-- Reads the steps of a job, from a number on.
SELECT number, name, attempt, recorded_at, result, wake_at, event, answered_at, started_at
FROM queuert_job_step WHERE job_id = :id AND number >= :number ORDER BY number

-- name: delete_steps
-- Deletes the steps of a chain's jobs.
DELETE FROM queuert_job_step WHERE job_id IN (SELECT id FROM queuert_job WHERE chain_id = :id)

-- name: oldest_event
-- Reads the event that was sent first and that no step has taken.
SELECT id, payload FROM queuert_sent_event
WHERE chain_id = (SELECT chain_id FROM queuert_job WHERE id = :job) AND name = :name AND payload IS NOT NULL
ORDER BY number LIMIT 1

-- name: take_event
-- Marks an event as taken: its id stays.
UPDATE queuert_sent_event SET payload = NULL
WHERE chain_id = (SELECT chain_id FROM queuert_job WHERE id = :job) AND id = :id

-- name: answer_wait
-- Answers a wait, with the payload of an event or by its timeout.
UPDATE queuert_job_step SET result = :result, answered_at = :now WHERE job_id = :id AND number = :number

-- name: kept_events
-- Reads how many events a chain keeps, their bytes, and whether it knows an id.
SELECT count(*), coalesce(sum(size), 0),
    EXISTS (SELECT 1 FROM queuert_sent_event WHERE chain_id = :chain AND id = :id)
FROM queuert_sent_event WHERE chain_id = :chain AND payload IS NOT NULL

-- name: newest_kept_events
-- Reads the names of the newest events that the chain of a job keeps.
SELECT name FROM queuert_sent_event
WHERE chain_id = (SELECT chain_id FROM queuert_job WHERE id = :job) AND payload IS NOT NULL
ORDER BY number DESC LIMIT :limit

-- name: send_event
-- Keeps an event for a chain.
INSERT INTO queuert_sent_event (chain_id, id, number, sent_at, size, name, payload)
SELECT :chain, :id, coalesce(max(number), 0) + 1, :now, :size, :name, :payload
FROM queuert_sent_event WHERE chain_id = :chain

-- name: awaited_event
-- Reads the wait of a job that is not answered, and when it ends.
SELECT event, wake_at FROM queuert_job_step WHERE job_id = :id AND event IS NOT NULL AND answered_at IS NULL

-- name: last_sleep
-- Reads the name of the last step of a job, if it is a sleep that is not over.
SELECT CASE WHEN event IS NULL AND wake_at > :now THEN name END
FROM queuert_job_step WHERE job_id = :id ORDER BY number DESC LIMIT 1

-- name: wake_receiver
-- Makes a job due that was snoozed until the end of its wait.
UPDATE queuert_job SET status = 'ready', scheduled_at = :now
WHERE id = :id AND status = 'scheduled' AND scheduled_at = :wake_at

-- name: delete_events
-- Deletes the events of a chain.
DELETE FROM queuert_sent_event WHERE chain_id = :id
