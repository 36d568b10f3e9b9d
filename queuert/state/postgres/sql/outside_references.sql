-- Jobs of other chains that have one of these chains as a blocker. The chains are locked: no new one can come.
SELECT blocker_chain_id, job_id
FROM {schema}.job_blocker JOIN {schema}.job ON job.id = job_id
WHERE blocker_chain_id = ANY (%(chains)s::text[]) AND job.chain_id <> ALL (%(chains)s::text[])
ORDER BY blocker_chain_id, job_id LIMIT 100
