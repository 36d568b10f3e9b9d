-- A schedule; its chains stay.
DELETE FROM queuert_schedule WHERE name = :name
