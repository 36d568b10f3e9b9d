-- Only the latest hints are of use to anybody.
DELETE FROM queuert_hint WHERE id <= (SELECT max(id) FROM queuert_hint) - :kept
