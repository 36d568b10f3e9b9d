"""What workers did, by minute and later by hour: counts of attempts, and histograms of how long they waited and ran.

Only an addition: workers of the version before go on beside it, and record nothing.
"""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# A minute is one of a worker, an hour (3,600 seconds) is of all, with the empty worker. `report` is the number of the
# worker's last report that is in the row. The rows of a minute are written up to four times within it: no index has a
# column that changes, and a page that is half empty has room for the next version of each of its rows.
ACTIVITY = """
CREATE TABLE activity (
    seconds     integer NOT NULL,
    begins_at   timestamptz NOT NULL,
    type        text COLLATE "C" NOT NULL,
    worker      text COLLATE "C" NOT NULL,
    report      bigint NOT NULL,
    started     bigint NOT NULL,
    completed   bigint NOT NULL,
    continued   bigint NOT NULL,
    retried     bigint NOT NULL,
    failed      bigint NOT NULL,
    cancelled   bigint NOT NULL,
    interrupted bigint NOT NULL,
    waiting     bigint NOT NULL,
    rejected    bigint NOT NULL,
    reaped      bigint NOT NULL,
    wait        bigint[] NOT NULL,
    run         bigint[] NOT NULL,
    PRIMARY KEY (seconds, begins_at, type, worker)
) WITH (fillfactor = 50)
"""


def upgrade() -> None:
    op.execute(ACTIVITY)


def downgrade() -> None:
    op.execute("DROP TABLE activity")
