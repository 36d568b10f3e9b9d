"""Guards that the database itself holds: what a row may name, and whose numbers it carries.

Only additions, each of them short: the version before goes on beside this one.
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


# What a row of `bulk_stage` names is dropped by whoever cleans up: only a name that a bulk write makes may stand there.
# The constraint comes first, so that nobody adds another name between the deletion and the look at all rows.
STAGE_NAMES = (
    """ALTER TABLE bulk_stage ADD CONSTRAINT bulk_stage_name_is_made
       CHECK (name ~ '^bulk_stage_[0-9a-f]{32}$') NOT VALID""",
    "DELETE FROM bulk_stage WHERE name !~ '^bulk_stage_[0-9a-f]{32}$'",
    "ALTER TABLE bulk_stage VALIDATE CONSTRAINT bulk_stage_name_is_made",
)
ANY_STAGE_NAMES = ("ALTER TABLE bulk_stage DROP CONSTRAINT bulk_stage_name_is_made",)

# A number that no transaction has had yet was not written by retention as it is now: it was forged, and tells all
# readers that all is lost. What is not certain to be whole begins at the oldest event that is left.
BELIEVED = """
UPDATE event_log SET dropped_tx = coalesce(
    (SELECT tx FROM job_event WHERE tx < pg_snapshot_xmax(pg_current_snapshot()) ORDER BY tx LIMIT 1), '0')
WHERE dropped_tx >= pg_snapshot_xmax(pg_current_snapshot())
"""


def upgrade() -> None:
    op.execute(BELIEVED)
    for statement in STAGE_NAMES:
        op.execute(statement)


def downgrade() -> None:
    for statement in ANY_STAGE_NAMES:
        op.execute(statement)
