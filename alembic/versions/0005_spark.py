"""What writers of whole DataFrames and streams keep: what was committed, and what waits to be.

Only additions: workers of the version before go on beside it.
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

# What a commit has done, written by it: whoever repeats the write finds it here.
WRITE = """
CREATE TABLE bulk_write (
    committed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    rows         bigint NOT NULL,
    started      bigint NOT NULL,
    rejected     bigint NOT NULL,
    write_id     text COLLATE "C" NOT NULL,
    type         text COLLATE "C" NOT NULL,
    reject_files text[] NOT NULL,
    CONSTRAINT bulk_write_pkey PRIMARY KEY (write_id)
)
"""

# The staging tables of writes that go on, or whose driver died: what is touched no more for the seconds that its own
# write has chosen is dropped.
STAGE = """
CREATE TABLE bulk_stage (
    touched_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    staging_ttl integer NOT NULL DEFAULT 86400,
    name        text COLLATE "C" NOT NULL,
    write_id    text COLLATE "C" NOT NULL,
    CONSTRAINT bulk_stage_pkey PRIMARY KEY (name)
) WITH (fillfactor = 50)
"""

# The last micro-batch of each stream, and the query that wrote it.
STREAM = """
CREATE TABLE stream_write (
    committed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    batch        bigint NOT NULL,
    rows         bigint NOT NULL,
    sink         text COLLATE "C" NOT NULL,
    query        text COLLATE "C" NOT NULL,
    CONSTRAINT stream_write_pkey PRIMARY KEY (sink)
) WITH (fillfactor = 50)
"""

# Rows of micro-batches that are not committed. The staging table of a batch write has the same columns. Not logged:
# after a crash of the server it is empty, a commit that misses its rows fails, and Spark repeats the batch.
STREAM_STAGE = """
CREATE UNLOGGED TABLE stream_stage (
    tag               uuid NOT NULL,
    place             bigint NOT NULL,
    batch             bigint,
    staged_at         timestamptz DEFAULT clock_timestamp(),
    schedule_at       timestamptz,
    priority          integer,
    staging_ttl       integer DEFAULT 86400,
    sink              text COLLATE "C",
    id                text COLLATE "C" NOT NULL,
    deduplication_key text COLLATE "C",
    limit_key         text COLLATE "C",
    blocked_by        text[],
    input             jsonb NOT NULL
)
"""

TABLES = ("stream_stage", "stream_write", "bulk_stage", "bulk_write")


def upgrade() -> None:
    for statement in (WRITE, STAGE, STREAM, STREAM_STAGE):
        op.execute(statement)
    op.execute("CREATE INDEX stream_stage_batch ON stream_stage (sink, batch)")


def downgrade() -> None:
    # The staging tables of batch writes stand beside these, under names of their own.
    op.execute(
        """DO $$
           DECLARE stage text;
           BEGIN
               FOR stage IN SELECT name FROM bulk_stage WHERE name ~ '^bulk_stage_[0-9a-f]{32}$' LOOP
                   EXECUTE format('DROP TABLE IF EXISTS %I', stage);
               END LOOP;
           END $$"""
    )
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
