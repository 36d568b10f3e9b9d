"""Durable steps of jobs, and a count of snoozed attempts.

Only additions: workers of the version before write no steps and count no snoozes.
"""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# Rows are inserted once and never updated, so pages are filled. They are deleted with their job.
JOB_STEP = """
CREATE TABLE job_step (
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    wake_at     timestamptz,
    number      integer NOT NULL,
    attempt     integer NOT NULL,
    job_id      text COLLATE "C" NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    name        text NOT NULL,
    result      jsonb,
    CONSTRAINT job_step_pkey PRIMARY KEY (job_id, number)
)
"""


def upgrade() -> None:
    op.execute(JOB_STEP)
    op.execute("ALTER TABLE activity ADD COLUMN snoozed bigint NOT NULL DEFAULT 0")


def downgrade() -> None:
    op.execute("ALTER TABLE activity DROP COLUMN snoozed")
    op.execute("DROP TABLE job_step")
