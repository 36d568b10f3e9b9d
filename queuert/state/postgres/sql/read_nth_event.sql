-- The event that comes after so many others of those that are asked for, from a place in the log on and below a horizon. Of a
-- row that holds many, those before the place are passed over.
SELECT event.tx::text, event.seq + coalesce(one.place - 1, 0), event.happened_at
FROM {schema}.job_event AS event
LEFT JOIN LATERAL generate_subscripts(event.job_ids, 1) AS one (place) ON true
WHERE (tx, seq) >= (%(start_tx)s::xid8, %(start_seq)s::bigint - 63) AND tx < %(horizon)s::xid8
    AND (tx, seq + coalesce(one.place - 1, 0)) >= (%(start_tx)s::xid8, %(start_seq)s::bigint)
    AND (%(type_any)s::text[] IS NULL OR type = ANY (%(type_any)s::text[]))
    AND (%(status_any)s::text[] IS NULL OR status = ANY (%(status_any)s::text[]))
    AND (%(kind_any)s::text[] IS NULL OR kind = ANY (%(kind_any)s::text[]))
ORDER BY event.tx, event.seq, one.place OFFSET %(skip)s LIMIT 1
