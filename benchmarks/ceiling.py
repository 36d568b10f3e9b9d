"""The raw ceiling: the same rows and the same statements through the same driver, and nothing around them."""

from __future__ import annotations

import json
import time

import psycopg

from queuert.ids import new_id, new_token
from queuert.state.postgres.statements import Statements

_SQL = Statements("queuert")

_FUSED = b"""
WITH done AS (
    UPDATE queuert.job
    SET status = 'completed', output = '1', finished_at = clock_timestamp(), lease_expires_at = NULL,
        chain_status = 'completed', chain_closed_at = clock_timestamp()
    WHERE id = ANY (%(done)s::text[]) AND lease_token = %(token)s::uuid AND lease_expires_at IS NOT NULL
)
UPDATE queuert.job
SET status = 'running', attempt = attempt + 1, started_at = clock_timestamp(), lease_token = %(next)s::uuid,
    lease_expires_at = clock_timestamp() + interval '60 seconds', holder = 'ceiling'
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM queuert.job WHERE type = 'noop' AND status = 'ready'
    ORDER BY attempt - uncounted - lease_expirations - priority, scheduled_at
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
RETURNING id, input::text
"""


def insert(dsn: str, count: int, batch: int) -> float:
    """Insert no-op jobs, ``batch`` a statement; rows a second."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        began = time.perf_counter()
        for _ in range(count // batch):
            rows = [{"id": new_id(), "type": "noop", "priority": 0, "delay": 0, "input": 1} for _ in range(batch)]
            connection.execute(_SQL.start_jobs, {"jobs": json.dumps(rows)}).fetchall()
        return count / (time.perf_counter() - began)


def drain(dsn: str, count: int, batch: int) -> float:
    """Complete a batch and claim the next one in one statement until all is done; jobs a second."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        began = time.perf_counter()
        done: list[str] = []
        token, left = new_token(), count
        while left > 0 or done:
            following = new_token()
            asked = {"done": done, "token": token, "next": following, "limit": batch}
            done = [row[0] for row in connection.execute(_FUSED, asked, binary=True).fetchall()]
            left, token = left - len(done), following
        return count / (time.perf_counter() - began)
