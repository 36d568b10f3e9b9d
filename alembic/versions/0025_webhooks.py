"""Webhooks: records of endpoints, of their health and of the dispatcher, and the log of attempts at deliveries.

Only additions: workers of the version before know nothing of them.
"""

from __future__ import annotations

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

# What changes often (the health of an endpoint, the dispatcher's cursor) changes no indexed column.
RECORD = """
CREATE TABLE webhook_record (
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind       text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    tag        text NOT NULL,
    body       text NOT NULL,
    CONSTRAINT webhook_record_pkey PRIMARY KEY (kind, id)
) WITH (fillfactor = 50)
"""

# It refers to neither jobs nor endpoints: what was sent to whom is known after both are deleted.
ATTEMPT = """
CREATE TABLE webhook_attempt (
    number      bigint GENERATED ALWAYS AS IDENTITY,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    seconds     double precision NOT NULL,
    retry_in    double precision,
    attempt     integer NOT NULL,
    status      integer,
    endpoint_id text COLLATE "C" NOT NULL,
    delivery_id text NOT NULL,
    event_type  text NOT NULL,
    error       text,
    response    text,
    CONSTRAINT webhook_attempt_pkey PRIMARY KEY (endpoint_id, number)
)
"""


def upgrade() -> None:
    op.execute(RECORD)
    op.execute(ATTEMPT)
    op.execute("CREATE INDEX webhook_attempt_at_idx ON webhook_attempt (at)")


def downgrade() -> None:
    op.execute("DROP TABLE webhook_attempt")
    op.execute("DROP TABLE webhook_record")
