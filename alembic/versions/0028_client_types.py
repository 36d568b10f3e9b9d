"""Which job types clients complete, and after how long their jobs are overdue.

Only additions: workers of the version before record limits as they did. They do not know such types, so they have no
handlers for them either.
"""

from __future__ import annotations

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

# A type that clients complete has a `concurrency` of 0: no worker may run a job of it, and `demand` wants none for it.
OVERDUE = "ALTER TABLE type_limit ADD COLUMN overdue_seconds float8"


def upgrade() -> None:
    op.execute(OVERDUE)


def downgrade() -> None:
    op.execute("ALTER TABLE type_limit DROP COLUMN overdue_seconds")
