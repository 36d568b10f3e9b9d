"""In which files the rejected rows of a stream's last micro-batch are, in the row of its sink.

Only additions: the version before goes on beside it, and leaves both columns as they are, so that they may tell of an
earlier micro-batch than the row does; the names of the files show it. Defaults are constants, so that no row is written
anew. What that version has noted among the bulk writes is forgotten with those.
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """ALTER TABLE stream_write
           ADD COLUMN rejected bigint NOT NULL DEFAULT 0,
           ADD COLUMN reject_files text[] NOT NULL DEFAULT '{}'"""
    )


def downgrade() -> None:
    op.execute("ALTER TABLE stream_write DROP COLUMN reject_files, DROP COLUMN rejected")
