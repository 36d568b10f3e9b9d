-- Let nobody take a job from an attempt before this transaction has committed. No row: somebody has.
SELECT id FROM {schema}.job
WHERE id = %(job_id)s AND attempt = %(attempt)s AND lease_token = %(token)s::uuid AND status = 'running'
    AND (lease_expires_at > clock_timestamp() OR EXISTS (
        SELECT FROM {schema}.lease_extension AS extended
        WHERE extended.job_id = job.id AND extended.lease_token = job.lease_token
            AND extended.expires_at > clock_timestamp()))
FOR SHARE
