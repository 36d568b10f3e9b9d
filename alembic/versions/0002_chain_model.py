"""Deduplication, limits, pauses, recurring schedules, and the indexes of listings.

Only additions: workers of the version before go on beside it.
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE job
    ADD COLUMN deduplication_key text COLLATE "C",
    ADD COLUMN limit_key text COLLATE "C"
"""

INDEXES = (
    # At most one open job of a chain, beyond the first: that one is done before the second is there.
    """CREATE UNIQUE INDEX job_open_tail ON job (chain_id)
       WHERE chain_index > 0 AND status IN ('blocked', 'scheduled', 'ready', 'running')""",
    # The newest chain of a key.
    """CREATE INDEX job_deduplication ON job (type, deduplication_key, created_at)
       WHERE deduplication_key IS NOT NULL""",
    """CREATE INDEX job_deduplication_open ON job (type, deduplication_key, created_at)
       WHERE deduplication_key IS NOT NULL AND chain_status = 'open'""",
    # The claim of types with limits: the keys that have ready jobs, and the best of each.
    """CREATE INDEX job_limit_ready ON job
       (type, limit_key, (attempt - uncounted - lease_expirations - priority), scheduled_at)
       WHERE status = 'ready' AND limit_key IS NOT NULL""",
    # And those that have no key, which would otherwise be looked for among those that have one.
    """CREATE INDEX job_limit_free ON job (type, (attempt - uncounted - lease_expirations - priority), scheduled_at)
       WHERE status = 'ready' AND limit_key IS NULL""",
    # The sweep.
    "CREATE INDEX job_blocked ON job (id) WHERE status = 'blocked'",
    # Listings: one entry point a type and status, newest at the end, of first jobs and of later ones: so lists of
    # chains need no index of their own. Running jobs are in `job_running`, and a claim writes no entry here.
    """CREATE INDEX job_listing_first ON job (type, status, created_at, id)
       WHERE chain_index = 0 AND status <> 'running'""",
    """CREATE INDEX job_listing_later ON job (type, status, created_at, id)
       WHERE chain_index > 0 AND status <> 'running'""",
    # A first job's own status is that of its chain, until it has continued: only these need an index of chains. First
    # jobs are those with a chain's status; said so, the index is no choice for reading chains by their ids.
    """CREATE INDEX chain_listing ON job (type, chain_status, created_at, id)
       WHERE status = 'continued' AND chain_status IS NOT NULL""",
)

DEDUPLICATION = """
CREATE TABLE deduplication (
    taken bigint NOT NULL DEFAULT 1,
    type  text COLLATE "C" NOT NULL,
    key   text COLLATE "C" NOT NULL,
    CONSTRAINT deduplication_pkey PRIMARY KEY (type, key)
) WITH (fillfactor = 70)
"""

LIMIT_START = """
CREATE TABLE limit_start (
    started_at timestamptz NOT NULL,
    type       text COLLATE "C" NOT NULL,
    limit_key  text COLLATE "C" NOT NULL
)
"""

PAUSED_TYPE = """
CREATE TABLE paused_type (
    paused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    type      text COLLATE "C" NOT NULL,
    reason    text,
    CONSTRAINT paused_type_pkey PRIMARY KEY (type)
)
"""

SCHEDULE = """
CREATE TABLE schedule (
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_at    timestamptz,
    last_at    timestamptz,
    every      float8,
    priority   integer NOT NULL DEFAULT 0,
    paused     boolean NOT NULL DEFAULT false,
    name       text COLLATE "C" NOT NULL,
    type       text COLLATE "C" NOT NULL,
    cron       text,
    time_zone  text NOT NULL,
    missed     text NOT NULL,
    limit_key  text COLLATE "C",
    input      jsonb NOT NULL,
    CONSTRAINT schedule_pkey PRIMARY KEY (name),
    CONSTRAINT schedule_one_way CHECK ((cron IS NULL) <> (every IS NULL))
)
"""

# Which statuses go with which types, for the estimates of counts.
STATISTICS = "CREATE STATISTICS job_type_status (mcv) ON type, status FROM job"


def upgrade() -> None:
    op.execute(COLUMNS)
    for index in INDEXES:
        op.execute(index)
    op.execute(STATISTICS)
    op.execute(DEDUPLICATION)
    op.execute(LIMIT_START)
    op.execute("CREATE INDEX limit_start_of_key ON limit_start (type, limit_key, started_at)")
    op.execute("CREATE INDEX limit_start_by_age ON limit_start (type, started_at)")
    op.execute(PAUSED_TYPE)
    op.execute(SCHEDULE)
    op.execute("CREATE INDEX schedule_due ON schedule (next_at) WHERE NOT paused")


def downgrade() -> None:
    for table in ("schedule", "paused_type", "limit_start", "deduplication"):
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP STATISTICS job_type_status")
    for name in ("chain_listing", "job_listing_later", "job_listing_first", "job_blocked", "job_limit_free",
                 "job_limit_ready", "job_deduplication_open", "job_deduplication", "job_open_tail"):  # fmt: skip
        op.execute(f"DROP INDEX {name}")
    op.execute("ALTER TABLE job DROP COLUMN deduplication_key, DROP COLUMN limit_key")
