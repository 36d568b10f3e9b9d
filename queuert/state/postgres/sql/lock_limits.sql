-- Let the claims of types with limits go one by one, until the transaction ends; in one order, so that two which share
-- several types cannot wait for each other. A statement of its own: what counts afterwards needs a younger snapshot.
SELECT pg_advisory_xact_lock(key)
FROM (
    SELECT DISTINCT hashtextextended('{schema} limits of ' || type, 0) AS key
    FROM unnest(%(types)s::text[]) AS limited (type)
    ORDER BY key OFFSET 0
) AS locks
