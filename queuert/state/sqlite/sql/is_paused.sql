-- Whether nothing is claimed of a type.
SELECT 1 FROM queuert_paused_type WHERE type = :type
