"""Guards that the database itself holds: what a row may name, and whose numbers it carries.

Only additions, each of them short: the version before goes on beside this one.
"""

from __future__ import annotations

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing yet."""


def downgrade() -> None:
    """Nothing yet."""
