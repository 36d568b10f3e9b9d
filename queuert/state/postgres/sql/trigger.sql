-- Make scheduled jobs due. One whose time has come keeps its place in the order of those that are due.
UPDATE {schema}.job
SET status = 'ready', scheduled_at = least(scheduled_at, clock_timestamp())
WHERE id = ANY (%(ids)s::text[]) AND status = 'scheduled'
RETURNING id
