"""Clients complete chains by a function, which a role may call that may write nothing.

Only additions: clients of the version before complete chains as they did.
"""

from __future__ import annotations

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

# With the owner's rights. Every name is qualified, and the search path has nothing that others can write to. The text
# has no percent signs and no colons before names, which Alembic would read as placeholders.
#
# What it releases, and how, is what `release_dependents` does (`queuert/state/postgres/sql/finishing.sql`).
#
# Whoever could write outputs until now may call it, so that workers complete chains before `queuert migrate roles` is
# run again.
COMPLETE_CHAINS = r"""
DO $migration$
DECLARE
    granted text[] := ARRAY(
        SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(rolname) END
        FROM (
            SELECT (aclexplode(relacl)).* FROM pg_class WHERE oid = 'job'::regclass
            UNION ALL
            SELECT (aclexplode(attacl)).* FROM pg_attribute WHERE attrelid = 'job'::regclass AND attname = 'output'
        ) AS acl LEFT JOIN pg_roles ON pg_roles.oid = grantee
        WHERE privilege_type = 'UPDATE'
            AND grantee <> (SELECT relowner FROM pg_class WHERE oid = 'job'::regclass));
    one text;
BEGIN
    EXECUTE replace($text$
-- Completes the last jobs of chains with an output, and the chains with them, whatever the status of these jobs.
--
-- `completions` is an array of objects with a `chain_id`, the `tail_id` that the caller takes for the chain's last job,
-- and an `output`. The result is one row for each chain that exists, as it was. If `completed` is false, which it is in
-- all rows or in none, nothing was written, since a chain was missing or closed, or had another last job.
CREATE FUNCTION {schema}.complete_chains(completions json)
RETURNS TABLE (
    chain_id text,
    chain_type text,
    chain_status text,
    tail_id text,
    tail_type text,
    tail_status text,
    trace_context text,
    completed boolean,
    seconds float8,
    due_types text[]
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $function$
#variable_conflict use_column
DECLARE
    chains text[] := ARRAY(SELECT given.value ->> 'chain_id' FROM json_array_elements(completions) AS given (value));
    tails text[];
    met jsonb;
    written boolean := false;
    due text[] := '{}';
BEGIN
    -- The first and the last jobs, oldest first, as all do who lock several. A chain can be continued while this waits:
    -- each statement sees what was committed before it, unless the caller's transaction has one snapshot for all.
    FOR round IN 1..20 LOOP
        tails := ARRAY(
            SELECT coalesce(last.id, given.id)
            FROM unnest(chains) AS given (id)
            LEFT JOIN LATERAL (
                SELECT job.id FROM {schema}.job
                WHERE job.chain_id = given.id AND job.chain_index > 0
                ORDER BY job.chain_index DESC LIMIT 1
            ) AS last ON true);
        PERFORM FROM {schema}.job
        WHERE job.id = ANY (chains || tails)
        ORDER BY job.created_at, job.id FOR NO KEY UPDATE;
        EXIT WHEN NOT EXISTS (SELECT FROM {schema}.job WHERE job.id = ANY (tails) AND job.status = 'continued');
        IF round = 20 THEN
            RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
                MESSAGE = 'chains continue faster than their last jobs can be locked, repeat the transaction';
        END IF;
    END LOOP;

    SELECT jsonb_agg(jsonb_build_object(
            'chain_id', root.id, 'chain_type', root.type, 'chain_status', root.chain_status,
            'tail_id', tail.id, 'tail_type', tail.type,
            'tail_status', CASE WHEN tail.status = 'scheduled' AND tail.scheduled_at <= clock_timestamp()
                THEN 'ready' ELSE tail.status END,
            'trace_context', coalesce(tail.attempt_trace_context, tail.trace_context))),
        count(*) = cardinality(chains)
            AND bool_and(root.chain_status = 'open' AND tail.id IS NOT DISTINCT FROM given.value ->> 'tail_id')
        INTO met, written
    FROM json_array_elements(completions) WITH ORDINALITY AS given (value, place)
    JOIN {schema}.job AS root ON root.id = chains[given.place] AND root.chain_index = 0
    JOIN {schema}.job AS tail ON tail.id = tails[given.place];

    IF written THEN
        -- A blocked job keeps its count of open blockers, which goes on to fall.
        WITH finished AS (
            UPDATE {schema}.job
            SET status = 'completed',
                finished_at = clock_timestamp(),
                completed_tx = pg_current_xact_id(),
                chain_status = CASE WHEN job.chain_index = 0 THEN 'completed' END,
                chain_closed_at = CASE WHEN job.chain_index = 0 THEN clock_timestamp() END,
                expires_at = CASE WHEN job.chain_index = 0
                    THEN clock_timestamp() + job.result_ttl * interval '1 second' END,
                output = coalesce((given.value -> 'output')::jsonb, 'null'),
                error = NULL,
                lease_token = NULL,
                lease_expires_at = NULL
            FROM json_array_elements(completions) AS given (value)
            WHERE job.id = given.value ->> 'tail_id'
            RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt,
                job.scheduled_at, job.started_at
        ),
        closed AS (
            UPDATE {schema}.job
            SET chain_status = 'completed', chain_closed_at = clock_timestamp(), completed_tx = pg_current_xact_id(),
                expires_at = clock_timestamp() + job.result_ttl * interval '1 second'
            FROM finished
            WHERE job.id = finished.chain_id AND finished.chain_index > 0
        )
        INSERT INTO {schema}.job_event
            (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at)
        SELECT 'completed', finished.status, finished.id, finished.chain_id, finished.chain_index, finished.type,
            finished.chain_type, finished.attempt, finished.scheduled_at, finished.started_at
        FROM finished
        WHERE coalesce(
            (SELECT own.level FROM {schema}.event_level AS own WHERE own.type = finished.type),
            (SELECT event_log.level FROM {schema}.event_log)) <> 'off';

        -- A statement of its own: a snapshot from before the chains were locked could miss a job that had just begun to
        -- wait.
        WITH marked AS (
            UPDATE {schema}.job_blocker SET closed = true
            WHERE job_blocker.ctid = ANY (ARRAY(
                SELECT entry.tid
                FROM unnest(chains) AS about (id)
                CROSS JOIN LATERAL (
                    SELECT job_blocker.ctid AS tid FROM {schema}.job_blocker
                    WHERE job_blocker.blocker_chain_id = about.id AND NOT job_blocker.closed OFFSET 0
                ) AS entry))
            RETURNING job_blocker.job_id
        ),
        counted AS MATERIALIZED (
            SELECT marked.job_id, count(*) AS closed FROM marked GROUP BY marked.job_id
        ),
        locked AS MATERIALIZED (
            SELECT job.id, job.status AS was FROM {schema}.job
            WHERE job.id = ANY (ARRAY(SELECT counted.job_id FROM counted))
            ORDER BY job.created_at, job.id FOR NO KEY UPDATE
        ),
        released AS (
            UPDATE {schema}.job
            SET open_blockers = job.open_blockers - counted.closed,
                scheduled_at = CASE WHEN job.open_blockers = counted.closed AND job.status = 'blocked'
                    THEN greatest(job.scheduled_at, clock_timestamp()) ELSE job.scheduled_at END,
                status = CASE WHEN job.open_blockers > counted.closed OR job.status <> 'blocked' THEN job.status
                    WHEN job.scheduled_at > clock_timestamp() THEN 'scheduled'
                    ELSE 'ready' END
            FROM locked JOIN counted ON counted.job_id = locked.id
            WHERE job.id = locked.id AND job.id = ANY (ARRAY(SELECT locked.id FROM locked))
            RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt,
                job.scheduled_at, job.started_at, locked.was
        ),
        event AS (
            INSERT INTO {schema}.job_event
                (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at, started_at)
            SELECT 'unblocked', released.status, released.id, released.chain_id, released.chain_index, released.type,
                released.chain_type, released.attempt, released.scheduled_at, released.started_at
            FROM released
            WHERE released.was = 'blocked' AND released.status <> 'blocked' AND coalesce(
                (SELECT own.level FROM {schema}.event_level AS own WHERE own.type = released.type),
                (SELECT event_log.level FROM {schema}.event_log)) = 'all'
        )
        SELECT array_agg(DISTINCT released.type) INTO due FROM released
        WHERE released.status IN ('ready', 'scheduled');
    END IF;

    RETURN QUERY
    SELECT one.chain_id, one.chain_type, one.chain_status, one.tail_id, one.tail_type, one.tail_status,
        one.trace_context, written, extract(epoch FROM root.chain_closed_at - root.created_at)::float8,
        coalesce(due, '{}')
    FROM jsonb_to_recordset(met) AS one (
        chain_id text, chain_type text, chain_status text, tail_id text, tail_type text, tail_status text,
        trace_context text)
    JOIN {schema}.job AS root ON root.id = one.chain_id;
END
$function$
$text$, '{schema}', quote_ident(current_schema()));
    REVOKE ALL ON FUNCTION complete_chains(json) FROM PUBLIC;
    FOREACH one IN ARRAY granted LOOP
        EXECUTE 'GRANT EXECUTE ON FUNCTION complete_chains(json) TO ' || one;
    END LOOP;
END
$migration$
"""


def upgrade() -> None:
    op.execute(COMPLETE_CHAINS)


def downgrade() -> None:
    op.execute("DROP FUNCTION complete_chains(json)")
