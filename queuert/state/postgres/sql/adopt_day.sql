-- Let all events of a day be those of one transaction. Within it they are in the order of their numbers.
WITH changed AS (
    UPDATE {schema}.job_event SET tx = %(tx)s::xid8
    WHERE happened_at >= %(day)s::date::timestamp AT TIME ZONE 'UTC'
        AND happened_at < (%(day)s::date + 1)::timestamp AT TIME ZONE 'UTC' AND tx <> %(tx)s::xid8
    RETURNING cardinality(job_ids) AS many
)
SELECT coalesce(sum(coalesce(many, 1)), 0)::bigint FROM changed
