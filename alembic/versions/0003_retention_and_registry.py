"""How long closed chains are kept; attributes by which chains are found; who is at work.

Only additions: workers of the version before go on beside it.
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# --- retention: owned by one author, keep it in one block -------------------------------------------------------------

RETENTION = (
    """ALTER TABLE job
       ADD COLUMN result_ttl float8,
       ADD COLUMN expires_at timestamptz""",
    # Chains with an end of their own. A chain without one has no entry, and its closing writes none.
    "CREATE INDEX job_expiring ON job (expires_at, id) WHERE expires_at IS NOT NULL",
)

RETENTION_DOWN = (
    "DROP INDEX job_expiring",
    "ALTER TABLE job DROP COLUMN expires_at, DROP COLUMN result_ttl",
)

# --- attributes and workers: owned by one author, keep it in one block ------------------------------------------------

REGISTRY = (
    "ALTER TABLE job ADD COLUMN attributes jsonb",
    # Nothing but an index of what `attributes` holds: written once, with the chain, and never updated.
    """CREATE TABLE chain_attribute (
           created_at timestamptz NOT NULL,
           name       text COLLATE "C" NOT NULL,
           value      text COLLATE "C" NOT NULL,
           chain_id   text COLLATE "C" NOT NULL,
           CONSTRAINT chain_attribute_pkey PRIMARY KEY (name, value, created_at, chain_id)
       )""",
    # No column but the key is in an index, and there is room beside each row: a beat is a HOT update.
    """CREATE TABLE worker (
           started_at  timestamptz NOT NULL,
           seen_at     timestamptz NOT NULL,
           expires_at  timestamptz NOT NULL,
           pid         bigint NOT NULL,
           concurrency integer NOT NULL,
           running     integer NOT NULL,
           id          text COLLATE "C" NOT NULL,
           name        text NOT NULL,
           host        text NOT NULL,
           version     text NOT NULL,
           state       text NOT NULL,
           job_types   text[] NOT NULL,
           CONSTRAINT worker_pkey PRIMARY KEY (id)
       ) WITH (fillfactor = 50)""",
)

REGISTRY_DOWN = ("DROP TABLE worker", "DROP TABLE chain_attribute", "ALTER TABLE job DROP COLUMN attributes")

# --- the view of chains, with what this revision adds to them ---------------------------------------------------------

CHAIN_COLUMNS = ", root.expires_at, root.attributes"

CHAIN = """
CREATE VIEW chain AS
SELECT root.id, root.type, root.chain_status AS status, root.input, tail.output, tail.error, tail.type AS tail_type,
       tail.id AS tail_id, tail.chain_index + 1 AS length, root.created_at, root.chain_closed_at AS closed_at{columns}
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
    op.execute("DROP VIEW chain")
    for statement in (*RETENTION, *REGISTRY):
        op.execute(statement)
    op.execute(CHAIN.format(columns=CHAIN_COLUMNS))


def downgrade() -> None:
    op.execute("DROP VIEW chain")
    for statement in (*REGISTRY_DOWN, *RETENTION_DOWN):
        op.execute(statement)
    op.execute(CHAIN.format(columns=""))
