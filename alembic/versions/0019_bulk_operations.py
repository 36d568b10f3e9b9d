"""Bulk operations, which only logins with a right of their own may start; and who paused a job type.

Only additions: workers of the version before carry out no bulk operations, and its clients do not say who pauses.
"""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

# The chains that are bulk operations. Who may start chains may write jobs of any type; workers carry out only those
# that are named here, and that is written by the function alone.
BULK_OPERATION = """
CREATE TABLE bulk_operation (
    chain_id text COLLATE "C" NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    CONSTRAINT bulk_operation_pkey PRIMARY KEY (chain_id)
)
"""

# With the owner's rights. Every name is qualified, and the search path has nothing that others can write to. The text
# has no percent signs and no colons before names, which Alembic would read as placeholders.
START = r"""
DO $migration$
BEGIN
    EXECUTE replace($text$
CREATE FUNCTION {schema}.start_bulk_operation(id text, input jsonb)
RETURNS TABLE (chain_id text, type text, status text, created_at timestamptz)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    WITH written AS (
        INSERT INTO {schema}.job
            (id, type, chain_id, chain_type, chain_status, status, priority, created_at, scheduled_at, input)
        SELECT start_bulk_operation.id, 'queuert.bulk_operation', start_bulk_operation.id, 'queuert.bulk_operation',
            'open', 'ready', 0, now.at, now.at, start_bulk_operation.input
        FROM (SELECT clock_timestamp() AS at OFFSET 0) AS now
        RETURNING job.id, job.type, job.status, job.created_at, job.scheduled_at
    ),
    allowed AS (
        INSERT INTO {schema}.bulk_operation (chain_id) SELECT written.id FROM written
    ),
    event AS (
        INSERT INTO {schema}.job_event
            (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at)
        SELECT 'created', written.status, written.id, written.id, 0, written.type, written.type, 0,
            written.scheduled_at
        FROM written
        WHERE coalesce(
            (SELECT own.level FROM {schema}.event_level AS own WHERE own.type = written.type),
            (SELECT event_log.level FROM {schema}.event_log)) = 'all'
    )
    SELECT written.id, written.type, written.status, written.created_at FROM written
$function$
$text$, '{schema}', quote_ident(current_schema()));
END
$migration$
"""


def upgrade() -> None:
    op.execute("ALTER TABLE paused_type ADD COLUMN paused_by text")
    op.execute(BULK_OPERATION)
    op.execute(START)
    op.execute("REVOKE ALL ON FUNCTION start_bulk_operation(text, jsonb) FROM PUBLIC")


def downgrade() -> None:
    op.execute("DROP FUNCTION start_bulk_operation(text, jsonb)")
    op.execute("DROP TABLE bulk_operation")
    op.execute("ALTER TABLE paused_type DROP COLUMN paused_by")
