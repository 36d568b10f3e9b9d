"""When the phases among the steps of a job began.

Only an addition: the version before records no phases, and reads steps without the column.
"""

from __future__ import annotations

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE job_step ADD COLUMN started_at timestamptz")


def downgrade() -> None:
    op.execute("ALTER TABLE job_step DROP COLUMN started_at")
