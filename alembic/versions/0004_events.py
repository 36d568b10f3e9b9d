"""The event log, and what says by which transaction a job became final, and by which bulk write a chain was started.

Only additions: workers of the version before go on beside it; what they do is not in the log.
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# The first one is of the first revision, for its place among what finishes write; older schemas get it here.
COLUMNS = """
ALTER TABLE job
    ADD COLUMN IF NOT EXISTS completed_tx xid8,
    ADD COLUMN write_id text COLLATE "C"
"""

# Without statistics on it, since there are none for what is null nearly everywhere.
WRITE = "CREATE INDEX job_write ON job (write_id, id) WHERE write_id IS NOT NULL"

# No cache: a number that is drawn under a job's lock is then above all that were drawn under it before.
SEQUENCE = "CREATE SEQUENCE job_event_seq CACHE 1"

# Nothing is checked that the statements see to: a row of the log must never be what a transition fails by.
EVENT = """
CREATE TABLE job_event (
    happened_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    scheduled_at timestamptz,
    started_at   timestamptz,
    tx           xid8 NOT NULL DEFAULT pg_current_xact_id(),
    seq          bigint NOT NULL DEFAULT nextval('job_event_seq'),
    attempt      integer NOT NULL,
    chain_index  integer NOT NULL,
    kind         text COLLATE "C" NOT NULL,
    status       text COLLATE "C" NOT NULL,
    job_id       text COLLATE "C" NOT NULL,
    chain_id     text COLLATE "C" NOT NULL,
    type         text COLLATE "C" NOT NULL,
    chain_type   text COLLATE "C" NOT NULL,
    worker       text,
    error        jsonb
) PARTITION BY RANGE (happened_at)
"""

LOG = (
    SEQUENCE,
    EVENT,
    "ALTER SEQUENCE job_event_seq OWNED BY job_event.seq",
    "CREATE INDEX job_event_order ON job_event (tx, seq)",
    "CREATE TABLE job_event_default PARTITION OF job_event DEFAULT",
    # Today's and three to come, by the clock of the server. Workers make the next ones.
    """DO $$
       DECLARE today date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
       BEGIN
           FOR ahead IN 0..3 LOOP
               EXECUTE 'CREATE TABLE job_event_' || to_char(today + ahead, 'YYYYMMDD')
                   || ' PARTITION OF job_event FOR VALUES FROM (' || quote_literal((today + ahead) || ' 00:00:00+00')
                   || ') TO (' || quote_literal((today + ahead + 1) || ' 00:00:00+00') || ')';
           END LOOP;
       END $$""",
    # What holds for types that have no level of their own, and for the whole log: one row.
    """CREATE TABLE event_log (
           single    boolean NOT NULL DEFAULT true,
           -- The newest transaction of which retention has taken events: streams that are not so far have lost some.
           dropped_tx xid8 NOT NULL DEFAULT '0',
           keep_days integer NOT NULL DEFAULT 14,
           level     text COLLATE "C" NOT NULL DEFAULT 'all',
           CONSTRAINT event_log_pkey PRIMARY KEY (single),
           CONSTRAINT event_log_one_row CHECK (single),
           CONSTRAINT event_log_keep_days_above_zero CHECK (keep_days > 0),
           CONSTRAINT event_log_level_known CHECK (level IN ('all', 'terminal', 'off'))
       )""",
    "INSERT INTO event_log DEFAULT VALUES",
    """CREATE TABLE event_level (
           type  text COLLATE "C" NOT NULL,
           level text COLLATE "C" NOT NULL,
           CONSTRAINT event_level_pkey PRIMARY KEY (type),
           CONSTRAINT event_level_known CHECK (level IN ('all', 'terminal', 'off'))
       )""",
)


def upgrade() -> None:
    op.execute(COLUMNS)
    op.execute(WRITE)
    for statement in LOG:
        op.execute(statement)


def downgrade() -> None:
    for table in ("event_level", "event_log", "job_event"):
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP INDEX job_write")
    op.execute("ALTER TABLE job DROP COLUMN write_id")
