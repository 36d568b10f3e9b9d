"""Events that clients send to chains, and steps that wait for them.

Only additions: workers of the version before record no waits, and read steps without the new columns. A job that waits
must not be run by them, as a job with any other step that they do not know.
"""

from __future__ import annotations

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

# An event is inserted once, and updated once: whoever takes it removes the payload. The id stays until the chain is
# deleted, so that an event which is sent twice is taken once.
SENT_EVENT = """
CREATE TABLE sent_event (
    number   bigint GENERATED ALWAYS AS IDENTITY,
    sent_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    size     integer NOT NULL,
    chain_id text COLLATE "C" NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    id       text COLLATE "C" NOT NULL,
    name     text NOT NULL,
    payload  jsonb,
    CONSTRAINT sent_event_pkey PRIMARY KEY (chain_id, id)
)
"""


def upgrade() -> None:
    op.execute(SENT_EVENT)
    op.execute("CREATE INDEX sent_event_kept_idx ON sent_event (chain_id, number) WHERE payload IS NOT NULL")
    op.execute("ALTER TABLE job_step ADD COLUMN event text, ADD COLUMN answered_at timestamptz")


def downgrade() -> None:
    op.execute("ALTER TABLE job_step DROP COLUMN event, DROP COLUMN answered_at")
    op.execute("DROP TABLE sent_event")
