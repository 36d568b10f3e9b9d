"""Guards that the database itself holds: what a row may name, and whose numbers it carries.

Only additions, each of them short: the version before goes on beside this one.
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


# The cluster whose transaction numbers the log and the jobs have: another one counts anew. Numbers that this cluster
# has not come to are those of another one, from which the database was moved before it noted that.
OWNER = (
    """ALTER TABLE event_log ADD COLUMN system text COLLATE "C" NOT NULL DEFAULT 'unknown'""",
    """UPDATE event_log SET system = control.system_identifier::text
       FROM pg_control_system() AS control
       WHERE dropped_tx < pg_snapshot_xmax(pg_current_snapshot())
           AND NOT EXISTS (SELECT FROM job_event WHERE tx >= pg_snapshot_xmax(pg_current_snapshot()))""",
)
NO_OWNER = "ALTER TABLE event_log DROP COLUMN system"


def upgrade() -> None:
    for statement in OWNER:
        op.execute(statement)


def downgrade() -> None:
    op.execute(NO_OWNER)
