-- Some job waits for the chain.
UPDATE queuert_job SET has_dependents = 1 WHERE id = :id AND NOT has_dependents
