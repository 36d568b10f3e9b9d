-- As take_keys, for the staged rows of a bulk write.
INSERT INTO {schema}.deduplication (type, key)
SELECT %(type)s, key
FROM (
    SELECT DISTINCT deduplication_key AS key FROM {schema}.{stage}
    WHERE tag = ANY (%(tags)s::uuid[]) AND deduplication_key IS NOT NULL
) AS asked
ORDER BY key COLLATE "C"
ON CONFLICT (type, key) DO UPDATE SET taken = deduplication.taken + 1
