"""What workers know of job types: which of them clients complete, and which close with their parent.

Only additions: workers of the version before neither write the table nor read it, and `demand` has the columns that it
had.
"""

from __future__ import annotations

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

TYPE_TRAIT = """
CREATE TABLE type_trait (
    type                text COLLATE "C" PRIMARY KEY,
    completed_by_client boolean NOT NULL,
    overdue_seconds     float8,
    closes_with_parent  boolean NOT NULL
)
"""

PAUSED = "IF EXISTS (SELECT FROM ' || here || '.paused_type WHERE paused_type.type = this) THEN"
HELD_BACK = (
    "IF EXISTS (SELECT FROM ' || here || '.paused_type WHERE paused_type.type = this)\n"
    "            OR EXISTS (SELECT FROM ' || here || '.type_trait WHERE type_trait.type = this AND completed_by_client)"
    " THEN"
)

# The function is the one of revision 0011, but for a condition. It keeps its owner, and who may call it.
CHANGE_DEMAND = """
DO $migration$
DECLARE
    here text := quote_ident(current_schema());
    before text := pg_get_functiondef('demand(text[], integer)'::regprocedure);
    changed text := replace(before, '{before}', '{after}');
BEGIN
    IF changed = before THEN
        RAISE EXCEPTION 'the function demand is not the one of revision 0011';
    END IF;
    EXECUTE changed;
END
$migration$
"""

HOLD_BACK = CHANGE_DEMAND.format(before=PAUSED, after=HELD_BACK)
COUNT_AGAIN = CHANGE_DEMAND.format(before=HELD_BACK, after=PAUSED)


# Workers of this version write it with each heartbeat, and whoever cancels chains reads it: also before
# `queuert migrate roles` is run again.
GRANT_AS_LIMITS = """
DO $migration$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT acl.privilege_type AS what, CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(rolname) END AS who
        FROM pg_class CROSS JOIN LATERAL aclexplode(relacl) AS acl LEFT JOIN pg_roles ON pg_roles.oid = acl.grantee
        WHERE pg_class.oid = 'type_limit'::regclass AND acl.grantee <> relowner
            AND acl.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP
        EXECUTE 'GRANT ' || one.what || ' ON type_trait TO ' || one.who;
    END LOOP;
END
$migration$
"""


def upgrade() -> None:
    op.execute(TYPE_TRAIT)
    op.execute(GRANT_AS_LIMITS)
    op.execute(HOLD_BACK)


def downgrade() -> None:
    op.execute(COUNT_AGAIN)
    op.execute("DROP TABLE type_trait")
