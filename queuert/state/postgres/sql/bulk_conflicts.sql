-- Jobs that have the ids of staged rows already; with `expired` those of chains that have expired.
SELECT job.id FROM {schema}.{stage} AS staged
JOIN {schema}.job ON job.id = staged.id
WHERE staged.tag = ANY (%(tags)s::uuid[]) AND (NOT %(expired)s OR job.expires_at <= statement_timestamp())
LIMIT %(limit)s
