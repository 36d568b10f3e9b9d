-- The event that comes after so many others of those that are asked for, from a place in the log on and below a horizon.
SELECT event.tx::text, event.seq
FROM {schema}.job_event AS event
WHERE (tx, seq) >= (%(start_tx)s::xid8, %(start_seq)s::bigint) AND tx < %(horizon)s::xid8
    AND (%(type_any)s::text[] IS NULL OR type = ANY (%(type_any)s::text[]))
    AND (%(status_any)s::text[] IS NULL OR status = ANY (%(status_any)s::text[]))
    AND (%(kind_any)s::text[] IS NULL OR kind = ANY (%(kind_any)s::text[]))
ORDER BY event.tx, event.seq OFFSET %(skip)s LIMIT 1
