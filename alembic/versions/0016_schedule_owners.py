"""Whose a schedule is, what happens when its chains overlap, and what else it says of its chains.

Only additions: workers of the version before go on beside it. They start a chain at each tick, whatever ``overlap``
says, and schedules that they store have no owner.
"""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

COLUMNS = {
    "jitter": "float8 NOT NULL DEFAULT 0",
    "result_ttl": "float8",
    "starts_at": "timestamptz",
    "ends_at": "timestamptz",
    "owner": "text",
    "overlap": "text NOT NULL DEFAULT 'allow'",
    "last_chain_id": "text",
    "attributes": "jsonb",
}


def upgrade() -> None:
    op.execute("ALTER TABLE schedule " + ", ".join(f"ADD COLUMN {name} {type}" for name, type in COLUMNS.items()))


def downgrade() -> None:
    op.execute("ALTER TABLE schedule " + ", ".join(f"DROP COLUMN {name}" for name in COLUMNS))
