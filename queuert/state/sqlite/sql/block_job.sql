-- Let a job wait for more chains.
UPDATE queuert_job SET status = :status, blocker_count = blocker_count + :added, open_blockers = open_blockers + :open
WHERE id = :id
