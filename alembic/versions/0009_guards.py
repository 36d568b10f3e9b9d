"""Guards that the database itself holds: what a row may name, and whose numbers it carries.

Only additions, each of them short: the version before goes on beside this one.
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


# Leases whose rows somebody's transaction had locked when they were to be renewed. No foreign key: its check would wait
# for such a transaction.
LEASE_EXTENSION = """
CREATE TABLE lease_extension (
    job_id text COLLATE "C" PRIMARY KEY,
    lease_token uuid NOT NULL,
    expires_at timestamptz NOT NULL
)
"""


def upgrade() -> None:
    """Leases that are extended beside their rows."""
    op.execute(LEASE_EXTENSION)


def downgrade() -> None:
    """The reverse."""
    op.execute("DROP TABLE lease_extension")
