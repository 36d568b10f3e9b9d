"""The trace context of the newest attempt of a job, to which the next attempt and joins link their spans.

Only an addition: workers of the version before go on beside it, and leave it as it is. It is the last column, null
until a traced attempt ends, and in no index and no check: what is not traced pays nothing.
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE job ADD COLUMN attempt_trace_context text")


def downgrade() -> None:
    op.execute("ALTER TABLE job DROP COLUMN attempt_trace_context")
