"""Chains of the library's own types, such as bulk operations, are not completed by a client.

Only additions: what is refused now has no use.
"""

from __future__ import annotations

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

WRITE = "    IF written THEN\n        -- A blocked job keeps"
REFUSE = (
    "    IF written AND EXISTS (\n"
    "        SELECT FROM jsonb_array_elements(met) AS one (value)\n"
    "        WHERE starts_with(one.value ->> ''tail_type'', ''queuert.'')\n"
    "    ) THEN\n"
    "        RAISE EXCEPTION USING ERRCODE = ''insufficient_privilege'',\n"
    "            MESSAGE = ''complete_chains: jobs of types that begin with queuert. are for workers alone'';\n"
    "    END IF;\n\n"
)

# The function is the one of revision 0027, but for a condition. It keeps its owner, and who may call it.
CHANGE_FUNCTION = """
DO $migration$
DECLARE
    before text := pg_get_functiondef('complete_chains(json)'::regprocedure);
    changed text := replace(before, '{before}', '{after}');
BEGIN
    IF changed = before THEN
        RAISE EXCEPTION 'the function complete_chains is not the one of revision 0027';
    END IF;
    EXECUTE changed;
END
$migration$
"""

ADD_CONDITION = CHANGE_FUNCTION.format(before=WRITE, after=REFUSE + WRITE)
REMOVE_CONDITION = CHANGE_FUNCTION.format(before=REFUSE + WRITE, after=WRITE)


def upgrade() -> None:
    op.execute(ADD_CONDITION)


def downgrade() -> None:
    op.execute(REMOVE_CONDITION)
