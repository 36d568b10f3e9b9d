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

# The cluster whose transaction numbers the log and the jobs have: another one counts anew. Numbers that this cluster
# has not come to are those of another one, from which the database was moved before it noted that.
OWNER = (
    """ALTER TABLE event_log ADD COLUMN system text COLLATE "C" NOT NULL DEFAULT 'unknown'""",
    """UPDATE event_log SET system = control.system_identifier::text
       FROM pg_control_system() AS control
       WHERE dropped_tx < pg_snapshot_xmax(pg_current_snapshot())
           AND NOT EXISTS (SELECT FROM job_event WHERE tx >= pg_snapshot_xmax(pg_current_snapshot()))""",
)
NO_OWNER = "ALTER TABLE event_log DROP COLUMN system"


def upgrade() -> None:
    op.execute(LEASE_EXTENSION)
    # The owner first: whether the numbers are this cluster's is seen by those that are to be corrected then.
    for statement in (*OWNER, BELIEVED, *STAGE_NAMES):
        op.execute(statement)


def downgrade() -> None:
    for statement in ANY_STAGE_NAMES:
        op.execute(statement)
    op.execute(NO_OWNER)
    op.execute("DROP TABLE lease_extension")
