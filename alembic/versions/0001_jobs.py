"""Jobs, chains and blockers.

Names are unqualified: the search path is the schema that was asked for. ``docs/design/schema.md`` says why each column
and index is there.
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# What claims and finishes write stands together, and what never changes is before and behind it: of a row that is
# written anew in its page, only what lies between the first and the last change goes to the log. There is one check,
# since each is parsed anew by every statement that writes a row.
JOB = """
CREATE TABLE job (
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    scheduled_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    chain_index       integer NOT NULL DEFAULT 0,
    priority          integer NOT NULL DEFAULT 0,
    uncounted         integer NOT NULL DEFAULT 0,
    lease_expirations integer NOT NULL DEFAULT 0,
    open_blockers     integer NOT NULL DEFAULT 0,
    blocker_count     integer NOT NULL DEFAULT 0,
    has_dependents    boolean NOT NULL DEFAULT false,
    attempt           integer NOT NULL DEFAULT 0,
    started_at        timestamptz,
    lease_token       uuid,
    holder            text,
    status            text COLLATE "C" NOT NULL DEFAULT 'ready',
    lease_expires_at  timestamptz,
    finished_at       timestamptz,
    completed_tx      xid8,
    chain_closed_at   timestamptz,
    chain_status      text COLLATE "C",
    continued_by      text COLLATE "C",
    output            jsonb,
    error             jsonb,
    id                text COLLATE "C" NOT NULL,
    chain_id          text COLLATE "C" NOT NULL,
    type              text COLLATE "C" NOT NULL,
    chain_type        text COLLATE "C" NOT NULL,
    trace_context     text,
    input             jsonb NOT NULL,
    CONSTRAINT job_pkey PRIMARY KEY (id),
    CONSTRAINT job_lease_while_running CHECK (CASE WHEN lease_expires_at IS NULL THEN status <> 'running'
        ELSE status = 'running' AND lease_token IS NOT NULL END)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
)
"""

BLOCKER = """
CREATE TABLE job_blocker (
    position         integer NOT NULL,
    closed           boolean NOT NULL,
    job_id           text COLLATE "C" NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    blocker_chain_id text COLLATE "C" NOT NULL REFERENCES job (id),
    CONSTRAINT job_blocker_pkey PRIMARY KEY (job_id, position)
) WITH (fillfactor = 80)
"""

INDEXES = (
    # The claim: due jobs of one type, best first.
    """CREATE INDEX job_ready ON job (type, (attempt - uncounted - lease_expirations - priority), scheduled_at)
       WHERE status = 'ready'""",
    # On an expression, so that a statement that names it can take no other index: where statistics are missing or old,
    # a planner may prefer one that has to be sorted.
    "CREATE INDEX job_scheduled ON job ((type || ''), scheduled_at) WHERE status = 'scheduled'",
    # The reaper. Not on the lease's end: that would make every renewal write to all indexes.
    "CREATE INDEX job_running ON job (type) WHERE status = 'running'",
    # The tail of a chain, and at most one successor for each job.
    "CREATE UNIQUE INDEX job_chain ON job (chain_id, chain_index) WHERE chain_index > 0",
    # The jobs that wait for a chain. Each chain once a job.
    "CREATE UNIQUE INDEX job_blocker_chain ON job_blocker (blocker_chain_id, job_id)",
)

CHAIN = """
CREATE VIEW chain AS
SELECT root.id, root.type, root.chain_status AS status, root.input, tail.output, tail.error, tail.type AS tail_type,
       tail.id AS tail_id, tail.chain_index + 1 AS length, root.created_at, root.chain_closed_at AS closed_at
FROM job AS root
CROSS JOIN LATERAL (
    SELECT * FROM (
        SELECT last.id, last.type, last.chain_index, last.output, last.error
        FROM job AS last WHERE last.chain_id = root.id AND last.chain_index > 0
        ORDER BY last.chain_index DESC LIMIT 1
    ) AS continued
    UNION ALL
    SELECT root.id, root.type, root.chain_index, root.output, root.error
    WHERE NOT EXISTS (SELECT FROM job AS next WHERE next.chain_id = root.id AND next.chain_index = 1)
) AS tail
WHERE root.chain_index = 0
"""


def upgrade() -> None:
    op.execute(JOB)
    for index in INDEXES[:4]:
        op.execute(index)
    op.execute(BLOCKER)
    op.execute(INDEXES[4])
    op.execute(CHAIN)


def downgrade() -> None:
    op.execute("DROP VIEW chain")
    op.execute("DROP TABLE job_blocker")
    op.execute("DROP TABLE job")
