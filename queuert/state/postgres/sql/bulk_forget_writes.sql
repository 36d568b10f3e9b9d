-- Forget bulk writes that were committed so many seconds ago and have no chain left: whoever repeats one of them now writes
-- anew. One that somebody looks for in a transaction is passed over.
DELETE FROM {schema}.bulk_write
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {schema}.bulk_write
    WHERE committed_at < clock_timestamp() - %(seconds)s * interval '1 second'
        AND NOT EXISTS (SELECT FROM {schema}.job WHERE job.write_id = bulk_write.write_id)
    FOR UPDATE SKIP LOCKED
))
RETURNING write_id
