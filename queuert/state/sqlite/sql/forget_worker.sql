-- A worker that has stopped.
DELETE FROM queuert_worker WHERE id = :id
