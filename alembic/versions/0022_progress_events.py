"""Progress in the event log.

Only additions: the version before writes no such events, and its readers skip kinds that they do not know. The column
is null for all other events, for which it takes no space.
"""

from __future__ import annotations

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

EVENT = """
{create} VIEW event AS
SELECT entry.happened_at, coalesce(one.scheduled_at, entry.scheduled_at) AS scheduled_at,
    coalesce(one.started_at, entry.started_at) AS started_at, entry.tx, entry.seq + coalesce(one.place - 1, 0) AS seq,
    entry.attempt, entry.chain_index, entry.kind, entry.status, coalesce(one.job_id, entry.job_id) AS job_id,
    coalesce(one.chain_id, one.job_id, entry.chain_id) AS chain_id, entry.type, entry.chain_type, entry.worker,
    entry.error{progress}
FROM job_event AS entry
LEFT JOIN LATERAL unnest(entry.job_ids, entry.chain_ids, entry.scheduled_ats, entry.started_ats)
    WITH ORDINALITY AS one (job_id, chain_id, scheduled_at, started_at, place) ON true
"""


def upgrade() -> None:
    op.execute("ALTER TABLE job_event ADD COLUMN progress text")
    op.execute(EVENT.format(create="CREATE OR REPLACE", progress=", entry.progress"))


def downgrade() -> None:
    op.execute("DROP VIEW event")
    op.execute(EVENT.format(create="CREATE", progress=""))
    op.execute("ALTER TABLE job_event DROP COLUMN progress")
