"""Completing a chain that thousands wait for takes time by their number, and locks them with the chain.

Only the text of a function changes: clients of the version before call it as they did.
"""

from __future__ import annotations

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

# What is replaced is named by its exact text: the function must be the one of the revisions before. It keeps its owner,
# and who may call it. The new text does what `lock_chains` and `release_dependents` do (`queuert/state/postgres/sql`).
LOCK = """        WHERE job.id = ANY (chains || tails)
"""
LOCK_DEPENDENTS = """        WHERE job.id = ANY (chains || tails || ARRAY(
            SELECT entry.job_id
            FROM unnest(chains) AS about (id)
            CROSS JOIN LATERAL (
                SELECT job_blocker.job_id FROM {schema}.job_blocker
                WHERE job_blocker.blocker_chain_id = about.id AND NOT job_blocker.closed OFFSET 0
            ) AS entry))
"""
JOIN = """        locked AS MATERIALIZED (
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
"""
LOOK_UP = """        tally AS MATERIALIZED (
            SELECT jsonb_object_agg(counted.job_id, counted.closed) AS closed FROM counted
        ),
        locked AS MATERIALIZED (
            SELECT job.id, job.status FROM {schema}.job
            WHERE job.id = ANY (ARRAY(SELECT counted.job_id FROM counted))
            ORDER BY job.created_at, job.id FOR NO KEY UPDATE
        ),
        blocked AS MATERIALIZED (
            SELECT jsonb_object_agg(locked.id, true) AS ids FROM locked WHERE locked.status = 'blocked'
        ),
        released AS (
            UPDATE {schema}.job
            SET open_blockers = job.open_blockers - ((SELECT tally.closed FROM tally) ->> job.id)::int,
                scheduled_at = CASE WHEN job.status = 'blocked'
                        AND job.open_blockers = ((SELECT tally.closed FROM tally) ->> job.id)::int
                    THEN greatest(job.scheduled_at, clock_timestamp()) ELSE job.scheduled_at END,
                status = CASE WHEN job.status <> 'blocked'
                        OR job.open_blockers > ((SELECT tally.closed FROM tally) ->> job.id)::int THEN job.status
                    WHEN job.scheduled_at > clock_timestamp() THEN 'scheduled'
                    ELSE 'ready' END
            WHERE job.id = ANY (ARRAY(SELECT locked.id FROM locked))
            RETURNING job.id, job.status, job.chain_id, job.chain_index, job.type, job.chain_type, job.attempt,
                job.scheduled_at, job.started_at, (SELECT blocked.ids FROM blocked) ? job.id AS was_blocked
        ),
"""
WAS = "            WHERE released.was = 'blocked' AND released.status"
WAS_BLOCKED = "            WHERE released.was_blocked AND released.status"

CHANGE_FUNCTION = """
DO $migration$
DECLARE
    text_now text := pg_get_functiondef('complete_chains(json)'::regprocedure);
    text_before text;
    schema_name text := quote_ident(current_schema());
    change text[];
BEGIN
    FOREACH change SLICE 1 IN ARRAY ARRAY[
        [$before${lock}$before$, $after${dependents}$after$],
        [$before${join}$before$, $after${look_up}$after$],
        [$before${was}$before$, $after${was_blocked}$after$]]
    LOOP
        text_before := text_now;
        text_now := replace(
            text_before, replace(change[1], '{{schema}}', schema_name), replace(change[2], '{{schema}}', schema_name));
        IF text_now = text_before THEN
            RAISE EXCEPTION 'the function complete_chains is not the one of the revision before';
        END IF;
    END LOOP;
    EXECUTE text_now;
END
$migration$
"""

FORWARD = CHANGE_FUNCTION.format(
    lock=LOCK, dependents=LOCK_DEPENDENTS, join=JOIN, look_up=LOOK_UP, was=WAS, was_blocked=WAS_BLOCKED
)
BACK = CHANGE_FUNCTION.format(
    lock=LOCK_DEPENDENTS, dependents=LOCK, join=LOOK_UP, look_up=JOIN, was=WAS_BLOCKED, was_blocked=WAS
)


def upgrade() -> None:
    op.execute(FORWARD)


def downgrade() -> None:
    op.execute(BACK)
