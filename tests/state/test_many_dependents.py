"""A chain that 16,000 jobs wait for: closing it takes time by their number, and not by its square.

By its square it took longer than the server may take to answer, so the chain could not be closed at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from queuert.state.postgres import PostgresState
from queuert.state.types import WorkerlessCompletion
from queuert.testing.conformance.builders import ask, complete, fail, job

DEPENDENTS = 16_000

MORE = """
INSERT INTO queuert.job
SELECT (jsonb_populate_record(job, jsonb_build_object('id', 'waits' || n, 'chain_id', 'waits' || n))).*
FROM queuert.job CROSS JOIN generate_series(2, %(count)s) AS n WHERE id = 'waits1';
INSERT INTO queuert.job_blocker (job_id, blocker_chain_id, position, closed)
SELECT 'waits' || n, blocker_chain_id, position, closed
FROM queuert.job_blocker CROSS JOIN generate_series(2, %(count)s) AS n WHERE job_id = 'waits1'
"""


@pytest.fixture
def store(dsn: str) -> Iterator[Any]:
    """A store with the chain `awaited`, and all that waits for it."""
    store = PostgresState(dsn).sync_store()
    store.open()
    store.start_jobs([job(id="awaited")])
    store.start_jobs([job("waiting", id="waits1", blockers=["awaited"])])
    with psycopg.ClientCursor(psycopg.connect(dsn, autocommit=True)) as cursor:
        cursor.execute(MORE, {"count": DEPENDENTS})
        cursor.connection.close()
    yield store
    store.close()


@pytest.mark.quick
@pytest.mark.parametrize("how", ["completed_outside", "cancelled", "completed", "failed"])
def test_it_closes(store: Any, dsn: str, how: str) -> None:
    if how == "completed_outside":
        store.complete_chains([WorkerlessCompletion("awaited", "awaited", output="1")])
    elif how == "cancelled":
        store.cancel_chains(["awaited"], reason="x")
    else:
        [held] = store.claim(ask())
        store.finish([complete(held) if how == "completed" else fail(held)])
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT status, open_blockers, count(*) FROM queuert.job GROUP BY 1, 2").fetchall()
        entries = connection.execute("SELECT closed, count(*) FROM queuert.job_blocker GROUP BY 1").fetchall()
        events = connection.execute("SELECT count(*) FROM queuert.job_event WHERE kind = 'unblocked'").fetchone()
    closed = "completed" if how == "completed_outside" else how
    assert sorted(found) == sorted([(closed, 0, 1), ("ready", 0, DEPENDENTS)])
    assert entries == [(True, DEPENDENTS)]
    assert events == (DEPENDENTS,)
