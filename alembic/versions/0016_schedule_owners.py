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

ADD = """
ALTER TABLE schedule
    ADD COLUMN jitter float8 NOT NULL DEFAULT 0,
    ADD COLUMN result_ttl float8,
    ADD COLUMN starts_at timestamptz,
    ADD COLUMN ends_at timestamptz,
    ADD COLUMN owner text,
    ADD COLUMN overlap text NOT NULL DEFAULT 'allow',
    ADD COLUMN last_chain_id text,
    ADD COLUMN attributes jsonb
"""

DROP = """
ALTER TABLE schedule
    DROP COLUMN jitter,
    DROP COLUMN result_ttl,
    DROP COLUMN starts_at,
    DROP COLUMN ends_at,
    DROP COLUMN owner,
    DROP COLUMN overlap,
    DROP COLUMN last_chain_id,
    DROP COLUMN attributes
"""


def upgrade() -> None:
    op.execute(ADD)


def downgrade() -> None:
    op.execute(DROP)
