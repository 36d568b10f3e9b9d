-- Ids that several staged rows would start chains with: of rows with one deduplication key only the first would.
SELECT id FROM {schema}.{stage}
WHERE tag = ANY (%(tags)s::uuid[])
GROUP BY id
HAVING count(*) FILTER (WHERE deduplication_key IS NULL) + count(DISTINCT deduplication_key) > 1
ORDER BY id
LIMIT %(limit)s
