"""A process that stops inside a transaction of Queuert blocks others only until the server's timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from queuert.errors import StateUnavailableError
from queuert.state.postgres import PostgresState
from queuert.state.sync_store import Store
from queuert.state.types import NewJob
from tests.faults.halted import CASES, job, request
from tests.support.waiting import START, WAIT, until
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.fault

WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
# A transaction that has failed holds neither locks nor a snapshot, and its local settings are undone: not counted.
IDLE = """select count(*) from pg_stat_activity
    where state = 'idle in transaction' and datname = current_database() and pid <> pg_backend_pid()"""


@pytest.fixture
def store(dsn: str) -> Iterator[Store]:
    store = PostgresState(dsn).sync_store()
    store.open()
    yield store
    store.close()


@pytest.fixture
def one(dsn: str) -> Iterator[Callable[[Any], Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:

        def read(query: Any) -> Any:
            row = connection.execute(query).fetchone()
            return row and row[0]

        yield read


@contextmanager
def halted(dsn: str, name: str) -> Iterator[WorkerProcess]:
    process = WorkerProcess("-m", "tests.faults.halted", name, url=dsn, records=dsn)
    try:
        yield process
    finally:
        process.close()


async def is_wanted(operation: Callable[[Store], object], store: Store) -> None:
    """Repeat the call until it succeeds, as a worker or a client would."""
    async with asyncio.timeout(WAIT):
        while True:
            try:
                if await asyncio.to_thread(operation, store):
                    return
            except StateUnavailableError:
                continue


@pytest.mark.parametrize("name", CASES)
async def test_others_go_on_beside_a_process_that_stands_still(
    dsn: str, store: Store, one: Callable[[Any], Any], name: str
) -> None:
    """When the process resumes, it finds its connection lost, and repeats its operation."""
    with halted(dsn, name) as process:
        await until(lambda: process.is_frozen, "it stands still", START)
        await is_wanted(CASES[name].other, store)
        assert process.is_frozen
        await until(lambda: one(IDLE) == 0, "the server has ended its transaction")
        assert one(WAITING) == 0
        process.resume()
        assert await process.ended() == 0


@pytest.mark.quick
async def test_types_without_limits_are_claimed_beside_one_who_holds_the_limits(
    dsn: str, store: Store, one: Callable[[Any], Any]
) -> None:
    """The types without limits are claimed for as long as that lasts; and no session of the server is left waiting."""
    store.start_jobs([job(f"l{n}", type="limited") for n in range(2)])
    with psycopg.connect(dsn) as stranger:
        stranger.execute("select pg_advisory_xact_lock(hashtextextended('\"queuert\" limits of limited', 0))")
        for n in range(5):
            store.start_jobs([NewJob(f"w{n}", "work", "{}", id_chosen=True)])
            assert [found.id for found in store.claim(request("limited", "work"))] == [f"w{n}"]
        assert store.claim(request("limited")) == []
        assert one(WAITING) == 0
    await is_wanted(lambda store: len(store.claim(request("limited", "work"))) == 2, store)


def test_a_statement_is_ended_whose_client_has_given_up(dsn: str, one: Callable[[Any], Any]) -> None:
    """Each failed try to write beside a foreign lock would leave one more waiting session."""
    impatient = PostgresState(dsn, answer_timeout=0.3).sync_store(max_connections=1)
    impatient.open()
    try:
        with psycopg.connect(dsn) as stranger:
            stranger.execute("lock table queuert.job in access exclusive mode")
            for n in range(3):
                with pytest.raises(StateUnavailableError):
                    impatient.start_jobs([NewJob(f"w{n}", "work", "{}")])
            asyncio.run(until(lambda: one(WAITING) == 0, "nobody waits in the server"))
    finally:
        impatient.close()
