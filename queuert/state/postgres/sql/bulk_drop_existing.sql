-- Remove the staged rows whose ids exist, before one of them stands in for another row, or waits for a chain.
DELETE FROM {schema}.{stage} AS staged
USING {schema}.job
WHERE staged.tag = ANY (%(tags)s::uuid[]) AND job.id = staged.id
