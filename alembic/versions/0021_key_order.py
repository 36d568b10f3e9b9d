"""Chains of a limit key that run in the order of their starts, and keys that take turns.

Only additions: workers of the version before go on beside it. The index has the open chains with a limit key, those
that have begun before the others. It is on an expression of the type, so that statements that name it can take no other
index. It is built beside starts and finishes, which it does not block.
"""

from __future__ import annotations

from alembic import op

from queuert.migrations import build_index

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

KEY_ORDER = """
    ((type || ''), limit_key, (CASE WHEN attempt = 0 AND status <> 'continued' THEN 1 ELSE 0 END), created_at, id)
    WHERE chain_status = 'open' AND limit_key IS NOT NULL
"""

TYPE_LIMIT = """
ALTER TABLE type_limit
    ADD COLUMN IF NOT EXISTS fair boolean NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS ordered boolean NOT NULL DEFAULT false
"""


def upgrade() -> None:
    build_index(op, "job_key_order", "job", KEY_ORDER)
    # An upgrade that was interrupted behind the index begins again, and may find this done.
    op.execute(TYPE_LIMIT)


def downgrade() -> None:
    op.execute("ALTER TABLE type_limit DROP COLUMN fair, DROP COLUMN ordered")
    op.execute("DROP INDEX job_key_order")
