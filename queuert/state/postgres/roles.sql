-- Who may do what in the schema {schema}. Run it as the schema's owner, again after each migration; running it twice
-- changes nothing. The owner itself migrates, and makes and drops the days of the event log (queuert events maintain).
--
-- The roles cannot log in. Give them to those that do, more than one if need be:
--     GRANT {worker} TO my_worker_login;

DO $$
DECLARE wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY[{names}] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted) THEN
            EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', wanted);
        END IF;
    END LOOP;
END $$;

-- Begin by revoking everything, so that privileges which an older version granted do not remain. Privileges on columns
-- are revoked with it.
REVOKE ALL ON SCHEMA {schema} FROM PUBLIC, {everybody};
REVOKE ALL ON
    {schema}.alembic_version, {schema}.job, {schema}.job_blocker, {schema}.chain, {schema}.deduplication,
    {schema}.limit_start, {schema}.lease_extension, {schema}.paused_type, {schema}.schedule, {schema}.chain_attribute, {schema}.worker,
    {schema}.job_event, {schema}.job_event_default, {schema}.event, {schema}.event_log, {schema}.event_level,
    {schema}.bulk_write, {schema}.bulk_stage, {schema}.stream_write, {schema}.stream_stage, {schema}.type_limit,
    {schema}.activity, {schema}.job_step, {schema}.sent_event, {schema}.bulk_operation, {schema}.webhook_record, {schema}.webhook_attempt, {schema}.metric_jobs, {schema}.metric_workers, {schema}.metric_schedules, {schema}.metric_event_log,
    {schema}.type_trait
    FROM PUBLIC, {everybody};
REVOKE ALL ON FUNCTION
    {schema}.demand(text[], integer),
    {schema}.debounce(json),
    {schema}.complete_chains(json),
    {schema}.start_bulk_operation(text, jsonb),
    {schema}.start_chain(text, jsonb, text, boolean, text, text, interval, timestamptz, interval, integer, text, jsonb, interval, text, integer, text[], interval, interval)
    FROM PUBLIC, {everybody};
REVOKE ALL ON SEQUENCE {schema}.job_event_seq, {schema}.sent_event_number_seq, {schema}.webhook_attempt_number_seq
    FROM PUBLIC, {everybody};
DO $$
DECLARE day text;
BEGIN
    FOR day IN SELECT inhrelid::regclass FROM pg_catalog.pg_inherits WHERE inhparent = '{schema}.job_event'::regclass LOOP
        EXECUTE 'REVOKE ALL ON ' || day || $revoke$ FROM PUBLIC, {everybody}$revoke$;
    END LOOP;
END $$;

GRANT USAGE ON SCHEMA {schema} TO {everybody};
GRANT SELECT ON
    {schema}.alembic_version, {schema}.paused_type, {schema}.worker, {schema}.event_log, {schema}.event_level,
    {schema}.type_limit, {schema}.type_trait, {schema}.activity, {schema}.bulk_operation
    TO {readers};

-- Numbers for autoscalers. It counts by limit keys, which observers may not read, with the rights of its owner.
GRANT EXECUTE ON FUNCTION {schema}.demand(text[], integer) TO {readers};

-- Producers without our library: they start chains by a function, with the rights of its owner, and may nothing else.
-- Those that may start chains anyway may do so in SQL as well.
GRANT EXECUTE ON FUNCTION
    {schema}.start_chain(text, jsonb, text, boolean, text, text, interval, timestamptz, interval, integer, text, jsonb, interval, text, integer, text[], interval, interval)
    TO {producer}, {client}, {writer}, {worker};

-- A debounced start changes the input of a job that was never claimed, with the rights of the function's owner.
GRANT EXECUTE ON FUNCTION {schema}.debounce(json) TO {client}, {writer}, {worker};

-- Roles that change jobs insert into the log, and none can change what is in it. Rows are inserted through the parent
-- table, so its partitions, also future ones, need no grants. Time, transaction and number of an event are set by
-- column defaults and cannot be inserted: readers rely on these numbers, and retention derives from them which events
-- were dropped.
GRANT INSERT
    (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at, worker, error,
     progress, job_ids, chain_ids, scheduled_ats, started_ats)
    ON {schema}.job_event TO {worker}, {client}, {writer}, {operator};
GRANT USAGE ON SEQUENCE {schema}.job_event_seq TO {worker}, {client}, {writer}, {operator};
GRANT SELECT ON
    {schema}.job, {schema}.job_blocker, {schema}.job_step, {schema}.sent_event, {schema}.chain, {schema}.deduplication,
    {schema}.chain_attribute, {schema}.job_event, {schema}.event, {schema}.schedule
    TO {worker}, {client}, {writer}, {completer}, {operator};

-- Workers: claim, run and finish jobs, start chains, reap, prune. They cannot change schedules, pause types, or set
-- levels.
GRANT INSERT, UPDATE, DELETE ON
    {schema}.job, {schema}.job_blocker, {schema}.deduplication, {schema}.chain_attribute
    TO {worker};
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.limit_start, {schema}.lease_extension, {schema}.worker, {schema}.type_limit,
    {schema}.type_trait,
    {schema}.activity
    TO {worker};
-- Steps are recorded once; a wait for an event is answered once, by taking the payload of the event. Steps and events
-- are deleted by foreign keys, with the owner's rights.
GRANT INSERT (job_id, number, name, attempt, result, wake_at, event, started_at), UPDATE (result, answered_at)
    ON {schema}.job_step TO {worker};
GRANT UPDATE (payload) ON {schema}.sent_event TO {worker};
-- Whoever sends an event to a chain makes the job that waits for it due.
GRANT INSERT (chain_id, id, name, size, payload) ON {schema}.sent_event TO {worker}, {client}, {operator};
GRANT UPDATE (scheduled_at) ON {schema}.job TO {client};
-- Whoever may read jobs may read why they wait: also what their limits have admitted.
GRANT SELECT ON {schema}.limit_start TO {client}, {writer}, {completer}, {operator};
-- For the fence of a write that an attempt makes.
GRANT SELECT ON {schema}.lease_extension TO {writer};
GRANT UPDATE (next_at, last_at, last_chain_id) ON {schema}.schedule TO {worker};
-- For the cleanup of old bulk writes. Only their creator and the owner can drop the staging tables themselves.
GRANT SELECT, UPDATE, DELETE ON {schema}.bulk_write, {schema}.bulk_stage, {schema}.stream_stage TO {worker};

-- Clients: start chains and read. They cannot write the columns of leases, results and finishes. A start may wait for
-- other chains: these are locked, and the open blockers of the new job are counted.
GRANT INSERT
    (id, type, chain_id, chain_type, chain_status, status, priority, created_at, scheduled_at, has_dependents, input,
     trace_context, deduplication_key, limit_key, result_ttl, attributes, max_attempts)
    ON {schema}.job TO {client}, {writer};
GRANT UPDATE (has_dependents, blocker_count, open_blockers, status) ON {schema}.job TO {client}, {writer};
GRANT INSERT, UPDATE (closed) ON {schema}.job_blocker TO {client}, {writer};
GRANT INSERT, UPDATE (taken) ON {schema}.deduplication TO {client}, {writer};
GRANT INSERT ON {schema}.chain_attribute TO {client}, {writer};

-- Spark's writers: as clients, and stage rows. A batch write creates a table, so the role may create in the schema.
-- With this privilege a login can create a function that a later migration calls: trust these logins as you trust the
-- owner.
GRANT CREATE ON SCHEMA {schema} TO {writer};
GRANT INSERT (write_id) ON {schema}.job TO {writer};
GRANT SELECT, INSERT, UPDATE, DELETE ON
    {schema}.bulk_write, {schema}.bulk_stage, {schema}.stream_write, {schema}.stream_stage
    TO {writer};

-- Completers: read, and complete chains by a function, with the rights of its owner. They write nothing else.
GRANT EXECUTE ON FUNCTION {schema}.complete_chains(json) TO {completer}, {worker};

-- Operators: what the command line does. Cancel, retry, change, trigger, delete; schedules; pauses; levels of the log.
-- They cannot write inputs or outputs. Workers carry out the bulk operations that operators have started, and no job of
-- that type that somebody else has written.
GRANT EXECUTE ON FUNCTION {schema}.start_bulk_operation(text, jsonb) TO {operator};
GRANT UPDATE
    (status, scheduled_at, finished_at, chain_status, chain_closed_at, expires_at, lease_token, lease_expires_at,
     completed_tx, error, uncounted, lease_expirations, open_blockers, has_dependents, priority)
    ON {schema}.job TO {operator};
GRANT DELETE ON {schema}.job, {schema}.job_blocker, {schema}.deduplication, {schema}.chain_attribute TO {operator};
GRANT UPDATE (closed) ON {schema}.job_blocker TO {operator};
GRANT UPDATE (taken) ON {schema}.deduplication TO {operator};
GRANT INSERT, UPDATE, DELETE ON {schema}.schedule, {schema}.paused_type, {schema}.event_level TO {operator};
GRANT UPDATE (level, keep_days) ON {schema}.event_log TO {operator};

-- Webhooks: operators manage endpoints, whose secrets they read and write; workers deliver, and record how that went.
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.webhook_record TO {worker}, {operator};
GRANT SELECT ON {schema}.webhook_attempt TO {worker}, {operator};
GRANT INSERT (endpoint_id, delivery_id, event_type, attempt, status, error, seconds, retry_in, response), UPDATE, DELETE
    ON {schema}.webhook_attempt TO {worker};

-- Observers: counts, ages and statuses. No payloads, errors, keys or attributes, which may contain personal data.
GRANT SELECT
    (id, type, chain_id, chain_type, chain_index, chain_status, status, priority, attempt, uncounted, lease_expirations,
     open_blockers, blocker_count, has_dependents, created_at, scheduled_at, started_at, finished_at, chain_closed_at,
     expires_at, result_ttl, lease_expires_at, holder, continued_by, completed_tx, write_id, trace_context,
     attempt_trace_context, max_attempts, stale_at)
    ON {schema}.job TO {observer};
GRANT SELECT (id, type, status, tail_type, tail_id, length, created_at, closed_at, expires_at, stale_at) ON {schema}.chain TO {observer};
GRANT SELECT ON {schema}.job_blocker TO {observer};
GRANT SELECT (job_id, number, attempt, recorded_at, wake_at, answered_at, started_at) ON {schema}.job_step TO {observer};
GRANT SELECT (chain_id, number, sent_at, size) ON {schema}.sent_event TO {observer};
GRANT SELECT
    (happened_at, scheduled_at, started_at, tx, seq, attempt, chain_index, kind, status, job_id, chain_id, type, chain_type,
     worker, job_ids, chain_ids, scheduled_ats, started_ats)
    ON {schema}.job_event TO {observer};
GRANT SELECT
    (happened_at, scheduled_at, started_at, tx, seq, attempt, chain_index, kind, status, job_id, chain_id, type, chain_type,
     worker)
    ON {schema}.event TO {observer};
GRANT SELECT
    (created_at, updated_at, next_at, last_at, every, priority, paused, name, type, cron, time_zone, missed, owner, overlap,
     jitter, starts_at, ends_at, result_ttl, last_chain_id)
    ON {schema}.schedule TO {observer};
GRANT SELECT (number, at, seconds, retry_in, attempt, status, endpoint_id, delivery_id, event_type, error)
    ON {schema}.webhook_attempt TO {observer};
GRANT SELECT (committed_at, rows, started, rejected, write_id, type) ON {schema}.bulk_write TO {observer};
GRANT SELECT (committed_at, batch, rows, rejected, sink, query) ON {schema}.stream_write TO {observer};
GRANT SELECT ON {schema}.metric_jobs, {schema}.metric_workers, {schema}.metric_schedules, {schema}.metric_event_log
    TO {observer};
