"""A handler that blocks the event loop: a transaction that another one has begun keeps nobody from the file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from queuert.errors import LeaseLostError
from queuert.jobs import JobStatus
from queuert.state.adapter import ClaimedJob
from queuert.state.async_store import AsyncStore
from queuert.state.sqlite import SQLiteState
from queuert.testing.conformance.building import claim_one, complete, job, read, start
from tests.state.sqlite.ground import WAIT


class Stranger:
    """Somebody else who writes, in a thread of their own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.wrote = threading.Event()
        self._met = threading.Event()

    def writes(self) -> None:
        """Write, once somebody else holds the lock."""
        with closing(sqlite3.connect(self._path, timeout=0.0, isolation_level=None, check_same_thread=False)) as one:
            while not self._is_locked(one):
                pass
            self._met.set()
            one.execute(f"PRAGMA busy_timeout = {round(WAIT * 1000)}")
            one.execute("BEGIN IMMEDIATE")
            self.wrote.set()
            one.execute("ROLLBACK")

    def _is_locked(self, one: sqlite3.Connection) -> bool:
        try:
            one.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        one.execute("ROLLBACK")
        return False

    def comes_through(self) -> bool:
        """Block the calling thread until it has; False if it has not for too long."""
        return self._met.wait(WAIT) and self.wrote.wait(WAIT / 2)


@contextmanager
def stranger_at(path: Path) -> Iterator[Stranger]:
    """A stranger who writes while the block lasts."""
    stranger = Stranger(path)
    thread = threading.Thread(target=stranger.writes, daemon=True)
    thread.start()
    yield stranger
    thread.join(WAIT)
    assert not thread.is_alive()


async def held_in(path: Path) -> tuple[AsyncStore, ClaimedJob]:
    """A store, and a job that is claimed in it."""
    store = SQLiteState(path).async_store()
    await store.open()
    await start(store, job())
    return store, await claim_one(store)


async def test_a_transaction_that_nobody_comes_for_is_begun_again(path: Path) -> None:
    store, held = await held_in(path)

    async def ends() -> None:
        async with store.transaction(held) as transaction:
            transaction.connection.execute("CREATE TABLE mine (key TEXT)")
            await transaction.finish(complete(held))

    with stranger_at(path) as stranger:
        ending = asyncio.create_task(ends())
        await asyncio.sleep(0)
        assert stranger.comes_through()  # The event loop does nothing else meanwhile.
        await ending
    assert (await read(store, held.id)).status is JobStatus.COMPLETED
    await store.aclose()


async def test_the_last_ending_is_committed_without_the_event_loop(path: Path) -> None:
    store, held = await held_in(path)
    async with store.transaction(held) as transaction:
        with stranger_at(path) as stranger:
            ending = asyncio.create_task(transaction.finish(complete(held), last=True))
            await asyncio.sleep(0)
            assert stranger.comes_through()
            assert (await ending).written
    assert (await read(store, held.id)).status is JobStatus.COMPLETED
    await store.aclose()


@pytest.mark.parametrize("turns", range(6))
async def test_who_is_cancelled_at_the_beginning_leaves_nothing_open(path: Path, turns: int) -> None:
    """At any turn of the event loop; whoever comes next has the lock."""
    store, held = await held_in(path)

    async def begins() -> None:
        async with store.transaction(held):
            await asyncio.Event().wait()

    beginning = asyncio.create_task(begins())
    for _ in range(turns):
        await asyncio.sleep(0.001)
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    await store.finish([complete(held)])
    assert (await read(store, held.id)).status is JobStatus.COMPLETED
    await store.aclose()


async def test_what_cannot_begin_says_why(path: Path) -> None:
    store, held = await held_in(path)
    await store.finish([complete(held)])
    with pytest.raises(LeaseLostError):
        async with store.transaction(held):
            raise AssertionError("it has begun")
    await store.aclose()
