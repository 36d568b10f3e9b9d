"""The failed attempts of a job, in its row: the first one and the newest nineteen.

Only an addition: workers of the version before go on beside it, and add none. It is the last column, null until an
attempt fails, and in no index and no check: jobs that never fail pay nothing.
"""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE job ADD COLUMN failures jsonb")


def downgrade() -> None:
    op.execute("ALTER TABLE job DROP COLUMN failures")
