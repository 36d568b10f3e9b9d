"""The same work as bare SQL through psycopg: a row a job, a lease with its token, an attempt, a guarded completion."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.sql import SQL, Composed, Identifier

from queuert.ids import new_id, new_token
from queuert.testing.bench.scratch import Scratch

BATCH = 1_000
_CLAIM_BATCH = 100

_INSERT_ONE = "INSERT INTO {table} (id, type, input) VALUES (%b, 'noop', %b::jsonb) RETURNING id"
_INSERT = """
INSERT INTO {table} (id, type, input)
SELECT id, 'noop', input FROM unnest(%(ids)b::text[], %(inputs)b::jsonb[]) AS given (id, input) RETURNING id
"""
_FUSED = """
WITH done AS (
    UPDATE {table} AS job SET status = 'completed', output = given.output, finished_at = clock_timestamp(),
        lease_expires_at = NULL
    FROM unnest(%(ids)b::text[], %(outputs)b::jsonb[]) AS given (id, output)
    WHERE job.id = given.id AND lease_token = %(token)b::uuid AND lease_expires_at IS NOT NULL
)
UPDATE {table}
SET status = 'running', attempt = attempt + 1, lease_token = %(next)b::uuid, holder = 'bare',
    lease_expires_at = clock_timestamp() + interval '60 seconds'
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {table} WHERE type = 'noop' AND status = 'ready' ORDER BY scheduled_at
    LIMIT %(limit)b::bigint FOR UPDATE SKIP LOCKED))
RETURNING id, input::text
"""


class Bare:
    """Runs bare SQL on one connection."""

    def __init__(self, scratch: Scratch, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._cursor = connection.cursor(binary=True)
        self._channel = Identifier(f"{scratch.schema}_bare")
        table = Identifier(scratch.schema, "bare_job")
        self._insert_one, self._insert, self._fused = (
            SQL(text).format(table=table) for text in (_INSERT_ONE, _INSERT, _FUSED)
        )

    def start_single(self, jobs: int) -> None:
        """Insert one row a statement."""
        for number in range(jobs):
            self._execute(self._insert_one, [new_id(), str(number)])

    def start_batches(self, jobs: int) -> None:
        """Insert many rows a statement."""
        for begin in range(0, jobs, BATCH):
            numbers = range(begin, min(begin + BATCH, jobs))
            ids = [new_id() for _ in numbers]
            self._execute(self._insert, {"ids": ids, "inputs": [json.dumps(number) for number in numbers]})

    def drain(self, jobs: int) -> None:
        """Complete a batch and claim the next in one statement, until no job is left."""
        held: list[tuple[str, int]] = []
        token = new_token()
        while True:
            following = new_token()
            ids, outputs = [id for id, _ in held], [json.dumps(input) for _, input in held]
            requested = {"ids": ids, "outputs": outputs, "token": token, "next": following, "limit": _CLAIM_BATCH}
            held = [(id, json.loads(text)) for id, text in self._execute(self._fused, requested)]
            token = following
            if not held:
                return

    def latencies(self, jobs: int, scratch: Scratch) -> list[float]:
        """Return the seconds from an insert with its NOTIFY to the claimed row, for one job after the other."""
        found: list[float] = []
        with connected(scratch) as listening:
            listening.execute(SQL("LISTEN {}").format(self._channel))
            for number in range(jobs):
                began = time.perf_counter()
                with self._connection.transaction():
                    self._execute(self._insert_one, [new_id(), str(number)])
                    self._connection.execute(SQL("NOTIFY {}").format(self._channel))
                for _ in listening.notifies(stop_after=1, timeout=10):
                    pass
                token = new_token()
                requested = {"ids": [], "outputs": [], "token": token, "next": token, "limit": 1}
                self._execute(self._fused, requested)
                found.append(time.perf_counter() - began)
        return found

    def _execute(self, statement: Composed, values: Any) -> list[Any]:
        return self._cursor.execute(statement, values).fetchall()


@contextmanager
def connected(scratch: Scratch) -> Iterator[psycopg.Connection[Any]]:
    """Open a connection whose statements are prepared at once."""
    with psycopg.connect(scratch.dsn, autocommit=True, prepare_threshold=0) as connection:
        yield connection
