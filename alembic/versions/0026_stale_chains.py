"""When retention marked a closed chain as stale.

Only additions: workers of the version before delete chains as their own policies say, which have no stale time.
"""

from __future__ import annotations

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

CHAIN = """
CREATE OR REPLACE VIEW chain AS
SELECT root.id, root.type, root.chain_status AS status, root.input, tail.output, tail.error, tail.type AS tail_type,
       tail.id AS tail_id, tail.chain_index + 1 AS length, root.created_at, root.chain_closed_at AS closed_at,
       root.expires_at, root.attributes{columns}
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

# A retry does not clear the mark: one that is older than the closing does not count.
STALE_AT = ",\n       CASE WHEN root.stale_at >= root.chain_closed_at THEN root.stale_at END AS stale_at"


def upgrade() -> None:
    # The view as it is, to lock it before the table, as its readers do: in the other order a reader and the migration
    # would wait for each other.
    op.execute(CHAIN.format(columns=""))
    # Without a default, so the table is not written anew.
    op.execute("ALTER TABLE job ADD COLUMN stale_at timestamptz")
    op.execute(CHAIN.format(columns=STALE_AT))


def downgrade() -> None:
    # A view cannot lose a column in place, and one that is created anew has lost who may read it.
    op.execute("DROP VIEW chain")
    op.execute(CHAIN.format(columns=""))
    op.execute("ALTER TABLE job DROP COLUMN stale_at")
