"""How far the last attempt of a job is.

Only an addition: workers of the version before go on beside it, and leave it as it is. It is the last column, null
until a handler tells something, and in no index and no check: what does not use it pays nothing.
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE job ADD COLUMN progress text")


def downgrade() -> None:
    op.execute("ALTER TABLE job DROP COLUMN progress")
