"""A client that stops anywhere in what it sends holds locks only until the server's bound.

Each operation is stopped before each of its messages in turn, and the sessions that hold locks then are looked for. The
server waits for their clients: between two statements, in the middle of a pipeline, or of a COPY.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple

import psycopg
import pytest

from queuert.errors import StateError
from queuert.state.postgres import PostgresState, bounds
from queuert.state.sync_store import Store
from queuert.testing.databases import TemplateDatabases
from tests.faults import halted
from tests.faults.gate import Gate
from tests.faults.halted import job
from tests.support.waiting import WAIT, until

pytestmark = pytest.mark.fault

ANSWER_TIMEOUT = 0.8
_HAS_TRANSACTION_TIMEOUT = 170000
_WAITS = """
    SELECT state, wait_event, EXISTS (
        SELECT FROM pg_locks WHERE pid = one.pid AND granted AND (
            locktype IN ('transactionid', 'advisory', 'tuple') OR locktype = 'relation' AND mode <> 'AccessShareLock'))
    FROM pg_stat_activity AS one WHERE client_port = %s
"""


class Operation(NamedTuple):
    """What a client does, by its store or the address of its database, and what must be there before."""

    run: Callable[[Store, str, Any], object]
    prepare: Callable[[Store, str], Any] = lambda store, dsn: None


def _of(case: halted.Case) -> Operation:
    return Operation(lambda store, _, given: case.run(store, given), lambda store, _: case.prepare(store))


OPERATIONS = {
    # A bulk write has requests of less than a packet each: its driver cannot stop in the middle of one.
    **{name: _of(case) for name, case in halted.CASES.items() if name not in ("start in parts", "bulk write")},
    "start in parts": Operation(lambda store, *_: store.start_pipelined([job(f"p{n}")] for n in range(3))),
}


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_LEAST_IDLE", 0.3)
    monkeypatch.setattr(bounds, "_WHOLE", 1)


@contextmanager
def running(operation: Operation, dsn: str, messages: int) -> Iterator[tuple[Gate, bool]]:
    """Run the operation until it has sent so many messages and is stopped, or ends before; yields whether it has
    succeeded."""
    direct = PostgresState(dsn).sync_store()
    direct.open()
    given = operation.prepare(direct, dsn)
    direct.close()
    with closing(Gate(dsn)) as opened:
        store = PostgresState(opened.address, answer_timeout=ANSWER_TIMEOUT).sync_store(max_connections=1)
        store.open()
        succeeded, ended = threading.Event(), threading.Event()

        def run() -> None:
            with suppress(StateError):
                operation.run(store, opened.address, given)
                succeeded.set()
            ended.set()

        opened.stop_after(messages)
        thread = threading.Thread(target=run)
        thread.start()
        try:
            while not opened.stopped.wait(0.01) and not ended.is_set():
                pass
            yield opened, succeeded.is_set()
        finally:
            opened.close()
            thread.join(WAIT)
            store.close()


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.quick if one == "cancel" else ()) for one in OPERATIONS]
)
async def test_a_client_that_stops_holds_locks_until_the_bound(
    template_databases: TemplateDatabases, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, messages, failures = set[tuple[str, str]](), 0, 0
    while True:
        with template_databases.database() as dsn:
            monkeypatch.setenv("QUEUERT_URL", dsn)  # What some of the operations prepare by.
            with running(OPERATIONS[name], dsn, messages) as (opened, succeeded):
                if opened.stopped.is_set():
                    seen |= await waits(dsn, opened)
                    messages += 1
                elif succeeded:
                    break
                else:
                    failures += 1  # The bounds are so small that a busy machine may exceed them.
                    assert failures <= 20
    assert messages > 5
    assert seen


async def waits(dsn: str, stopped: Gate) -> set[tuple[str, str]]:
    """Wait until the stopped session holds no locks, and return in which states it held any."""
    seen = set[tuple[str, str]]()
    with psycopg.connect(dsn, autocommit=True) as connection:
        all_are = connection.info.server_version >= _HAS_TRANSACTION_TIMEOUT

        def holds_none() -> bool:
            is_read = stopped.is_read()
            found = connection.execute(_WAITS, [stopped.port]).fetchone()
            if found is None:
                return True
            state, event, holds = found
            if not is_read or event != "ClientRead":
                return False  # It has not come to what it waits for yet.
            if holds:
                seen.add((state, event))
            return not holds or not (all_are or state == "idle in transaction")

        await until(holds_none, "the server has ended its transaction")
    return seen
