"""Debounced starts, by a function that gives a waiting job the input of a newer start; and attempts of one job.

Only additions: workers of the version before retry by the policy alone, and its clients do not call the function.
"""

from __future__ import annotations

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# With the owner's rights, so that clients, which may start jobs, need no right to change inputs: it changes only jobs
# that have a deduplication key and were never claimed. Every name is qualified, and the search path has nothing that
# others can write to. The text has no percent signs and no colons before names, which Alembic would read as
# placeholders.
#
# The caller has locked the keys, so of several starts the last to commit is the last here. A claim that has locked the
# job decides: if it commits, the job has begun, and nothing is found. `max_delay` counts from the first start; a job
# that is due by it keeps its position among the due ones.
DEBOUNCE = r"""
DO $migration$
BEGIN
    EXECUTE replace($text$
CREATE FUNCTION {schema}.debounce(starts json)
RETURNS TABLE (place int, id text, type text, status text, created_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $function$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH params AS MATERIALIZED (
        SELECT * FROM json_to_recordset(debounce.starts)
            AS s (place int, type text, key text, debounce float8, max_delay float8, excluding jsonb, input jsonb)
    ),
    waiting AS MATERIALIZED (
        SELECT params.place, newest.id
        FROM params
        CROSS JOIN LATERAL (
            SELECT job.id FROM {schema}.job
            WHERE job.type = params.type AND job.deduplication_key = params.key AND job.chain_status = 'open'
                AND job.status IN ('scheduled', 'ready') AND job.attempt = 0 AND NOT params.excluding ? job.id
            ORDER BY job.type DESC, job.deduplication_key DESC, job.created_at DESC LIMIT 1
        ) AS newest
    ),
    locked AS MATERIALIZED (
        SELECT job.id, job.created_at FROM {schema}.job
        WHERE job.id = ANY (ARRAY(SELECT waiting.id FROM waiting))
            AND job.status IN ('scheduled', 'ready') AND job.attempt = 0
        ORDER BY job.created_at, job.id FOR NO KEY UPDATE
    ),
    debounced AS (
        UPDATE {schema}.job
        SET input = coalesce(params.input, 'null'),
            scheduled_at = due.at,
            status = CASE WHEN due.at > now.at THEN 'scheduled' ELSE 'ready' END
        FROM locked
        JOIN waiting ON waiting.id = locked.id
        JOIN params ON params.place = waiting.place
        CROSS JOIN LATERAL (SELECT clock_timestamp() AS at OFFSET 0) AS now
        CROSS JOIN LATERAL (
            SELECT least(now.at + params.debounce * interval '1 second',
                         locked.created_at + params.max_delay * interval '1 second') AS at
        ) AS due
        WHERE job.id = locked.id AND job.id = ANY (ARRAY(SELECT locked.id FROM locked))
        RETURNING params.place, job.id, job.type, job.status, job.created_at, job.scheduled_at
    ),
    event AS (
        INSERT INTO {schema}.job_event
            (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at)
        SELECT 'debounced', debounced.status, debounced.id, debounced.id, 0, debounced.type, debounced.type, 0,
            debounced.scheduled_at
        FROM debounced
        WHERE coalesce(
            (SELECT own.level FROM {schema}.event_level AS own WHERE own.type = debounced.type),
            (SELECT event_log.level FROM {schema}.event_log)) = 'all'
    )
    SELECT debounced.place, debounced.id, debounced.type, debounced.status, debounced.created_at FROM debounced;
END
$function$
$text$, '{schema}', quote_ident(current_schema()));
END
$migration$
"""


def upgrade() -> None:
    op.execute("ALTER TABLE job ADD COLUMN max_attempts int")
    op.execute(DEBOUNCE)
    op.execute("REVOKE ALL ON FUNCTION debounce(json) FROM PUBLIC")


def downgrade() -> None:
    op.execute("DROP FUNCTION debounce(json)")
    op.execute("ALTER TABLE job DROP COLUMN max_attempts")
