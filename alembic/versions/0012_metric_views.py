"""Views for dashboards and demand that read the database without our code: bounded, and without payloads.

Only additions: the version before goes on beside this one.
"""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

# Each branch is a range of one index, of which at most 10,001 entries are read. `running` has an index of its own, and
# so have scheduled jobs by their time, with an expression that keeps the planner from taking it for another one.
JOBS = """
CREATE VIEW metric_jobs AS
WITH RECURSIVE known (type) AS (
    SELECT min(head.type) FROM (
        (SELECT type FROM job WHERE chain_index = 0 AND status <> 'running' ORDER BY type LIMIT 1)
        UNION ALL
        (SELECT type FROM job WHERE chain_index > 0 AND status <> 'running' ORDER BY type LIMIT 1)
        UNION ALL
        (SELECT type FROM job WHERE status = 'running' ORDER BY type LIMIT 1)
    ) AS head
    UNION ALL
    SELECT (
        SELECT min(next.type) FROM (
            (SELECT job.type FROM job
             WHERE chain_index = 0 AND status <> 'running' AND job.type > known.type ORDER BY job.type LIMIT 1)
            UNION ALL
            (SELECT job.type FROM job
             WHERE chain_index > 0 AND status <> 'running' AND job.type > known.type ORDER BY job.type LIMIT 1)
            UNION ALL
            (SELECT job.type FROM job WHERE status = 'running' AND job.type > known.type ORDER BY job.type LIMIT 1)
        ) AS next
    )
    FROM known WHERE known.type IS NOT NULL
),
counted AS (
    SELECT known.type, state.status, entry.number, entry.oldest
    FROM known
    CROSS JOIN (VALUES ('blocked'), ('continued'), ('completed'), ('failed'), ('cancelled')) AS state (status)
    CROSS JOIN LATERAL (
        SELECT count(*) AS number, NULL::timestamptz AS oldest FROM (
            (SELECT FROM job WHERE chain_index = 0 AND job.status <> 'running'
                AND job.type = known.type AND job.status = state.status
             ORDER BY created_at, id LIMIT 10001)
            UNION ALL
            (SELECT FROM job WHERE chain_index > 0 AND job.status <> 'running'
                AND job.type = known.type AND job.status = state.status
             ORDER BY created_at, id LIMIT 10001)
        ) AS one
    ) AS entry
    WHERE known.type IS NOT NULL
    UNION ALL
    SELECT known.type, 'running', entry.number, entry.oldest
    FROM known CROSS JOIN LATERAL (
        SELECT count(*) AS number, min(one.started_at) AS oldest FROM (
            SELECT started_at FROM job WHERE job.status = 'running' AND job.type = known.type
            ORDER BY job.type LIMIT 10001
        ) AS one
    ) AS entry
    WHERE known.type IS NOT NULL
    UNION ALL
    SELECT known.type, 'ready', entry.number, entry.oldest
    FROM known CROSS JOIN LATERAL (
        SELECT count(*) AS number, min(one.scheduled_at) AS oldest FROM (
            SELECT scheduled_at FROM job WHERE job.status = 'ready' AND job.type = known.type
            ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at LIMIT 10001
        ) AS one
    ) AS entry
    WHERE known.type IS NOT NULL
    UNION ALL
    SELECT known.type, CASE WHEN span.due THEN 'ready' ELSE 'scheduled' END, entry.number,
        CASE WHEN span.due THEN entry.oldest END
    FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
    CROSS JOIN known
    CROSS JOIN LATERAL (
        VALUES (true, '-infinity'::timestamptz, clock.now), (false, clock.now, 'infinity'::timestamptz)
    ) AS span (due, after, until)
    CROSS JOIN LATERAL (
        SELECT count(*) AS number, min(one.scheduled_at) AS oldest FROM (
            SELECT scheduled_at FROM job
            WHERE job.status = 'scheduled' AND job.type || '' = known.type
                AND scheduled_at > span.after AND scheduled_at <= span.until
            ORDER BY scheduled_at LIMIT 10001
        ) AS one
    ) AS entry
    WHERE known.type IS NOT NULL
)
SELECT type, status, sum(number)::bigint AS jobs,
    greatest(extract(epoch FROM clock_timestamp() - min(oldest)), 0)::float8 AS oldest_seconds
FROM counted
GROUP BY type, status
HAVING sum(number) > 0
"""

WORKERS = """
CREATE VIEW metric_workers AS
SELECT id, name, host, version, state, job_types, concurrency AS slots, running AS jobs, started_at, seen_at
FROM worker
WHERE expires_at > clock_timestamp()
"""

SCHEDULES = """
CREATE VIEW metric_schedules AS
SELECT name, type, paused, next_at, last_at,
    CASE WHEN paused THEN 0
         ELSE greatest(extract(epoch FROM clock_timestamp() - next_at), 0) END::float8 AS delay_seconds
FROM schedule
"""

EVENT_LOG = """
CREATE VIEW metric_event_log AS
SELECT coalesce(extract(epoch FROM clock_timestamp() - (
    SELECT happened_at FROM job_event
    WHERE tx >= pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY tx, seq LIMIT 1
)), 0)::float8 AS lag_seconds
"""

DOWN = (
    "DROP VIEW metric_event_log",
    "DROP VIEW metric_schedules",
    "DROP VIEW metric_workers",
    "DROP VIEW metric_jobs",
)


def upgrade() -> None:
    for statement in (JOBS, WORKERS, SCHEDULES, EVENT_LOG):
        op.execute(statement)


def downgrade() -> None:
    for statement in DOWN:
        op.execute(statement)
