"""Rows of the event log that hold many events, a view that shows each as a row, and room for jobs to be rewritten in.

Only additions: the version before goes on beside it, and what it writes to the log is as before. But who reads the log
with it finds rows without a job's id, as soon as workers of this version write: replace its readers before workers.

Numbers are 64 apart from now on: the events of a row that holds many have theirs between it and the next.
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

PACKED = """
ALTER TABLE job_event
    ALTER COLUMN job_id DROP NOT NULL,
    ALTER COLUMN chain_id DROP NOT NULL,
    ADD COLUMN job_ids text[] COLLATE "C",
    ADD COLUMN chain_ids text[] COLLATE "C",
    ADD COLUMN scheduled_ats timestamptz[],
    ADD COLUMN started_ats timestamptz[],
    ALTER COLUMN seq SET DEFAULT nextval('job_event_seq') * 64
"""

# Either `job_id` is set, or `job_ids`. Without `chain_ids` each job is the first of its chain, which has its id.
EVENT = """
CREATE VIEW event AS
SELECT entry.happened_at, coalesce(one.scheduled_at, entry.scheduled_at) AS scheduled_at,
    coalesce(one.started_at, entry.started_at) AS started_at, entry.tx, entry.seq + coalesce(one.place - 1, 0) AS seq,
    entry.attempt, entry.chain_index, entry.kind, entry.status, coalesce(one.job_id, entry.job_id) AS job_id,
    coalesce(one.chain_id, one.job_id, entry.chain_id) AS chain_id, entry.type, entry.chain_type, entry.worker,
    entry.error
FROM job_event AS entry
LEFT JOIN LATERAL unnest(entry.job_ids, entry.chain_ids, entry.scheduled_ats, entry.started_ats)
    WITH ORDINALITY AS one (job_id, chain_id, scheduled_at, started_at, place) ON true
"""

# A job's row has three versions: of its start, of its claim and of its finish. Where its page has room for them, the
# write-ahead log gets what has changed and not the row, and no lock of the old one: a tenth less in all.
ROOM, LESS_ROOM = "ALTER TABLE job SET (fillfactor = 40)", "ALTER TABLE job SET (fillfactor = 70)"

# Each event gets a row of its own again, under its number. What came in between would be lost.
UNPACK = (
    "LOCK TABLE job_event IN ACCESS EXCLUSIVE MODE",
    """CREATE TEMPORARY TABLE unpacked ON COMMIT DROP AS
       SELECT event.* FROM event
       JOIN job_event AS entry ON entry.tx = event.tx AND entry.seq = event.seq / 64 * 64
       WHERE entry.job_ids IS NOT NULL""",
    "DROP VIEW event",
    "DELETE FROM job_event WHERE job_ids IS NOT NULL",
    """INSERT INTO job_event
           (happened_at, scheduled_at, started_at, tx, seq, attempt, chain_index, kind, status, job_id, chain_id, type,
            chain_type, worker, error)
       SELECT * FROM unpacked""",
)

PLAIN = """
ALTER TABLE job_event
    ALTER COLUMN job_id SET NOT NULL,
    ALTER COLUMN chain_id SET NOT NULL,
    DROP COLUMN job_ids,
    DROP COLUMN chain_ids,
    DROP COLUMN scheduled_ats,
    DROP COLUMN started_ats,
    ALTER COLUMN seq SET DEFAULT nextval('job_event_seq')
"""

# Numbers go on above those that are there.
GO_ON = """
SELECT setval('job_event_seq', greatest(nextval('job_event_seq'), (SELECT coalesce(max(seq), 0) + 1 FROM job_event)))
"""


def upgrade() -> None:
    # First what may have to wait for a vacuum: nobody is kept from the log meanwhile.
    for statement in (ROOM, PACKED, EVENT):
        op.execute(statement)


def downgrade() -> None:
    op.execute(LESS_ROOM)
    for statement in (*UNPACK, PLAIN, GO_ON):
        op.execute(statement)
