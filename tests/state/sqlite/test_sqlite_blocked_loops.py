"""A handler that blocks the event loop: a transaction that another one has begun keeps nobody from the file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from queuert.errors import LeaseLostError
from queuert.jobs import JobStatus
from queuert.state.async_store import AsyncStore
from queuert.state.sqlite import SQLiteState
from queuert.state.sqlite.transaction import SQLiteTransaction
from queuert.state.types import ClaimedJob
from queuert.testing.conformance.builders import claim_one, complete, job, read, start
from tests.support.waiting import WAIT


def write(path: Path) -> None:
    """Write, as a stranger, as soon as nobody else holds the lock; an error if it is held for too long."""
    with closing(sqlite3.connect(path, timeout=WAIT / 2, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        stranger.execute("ROLLBACK")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a transaction has begun, in whatever thread."""
    begun = threading.Event()
    enter = SQLiteTransaction.__enter__

    def noted(transaction: SQLiteTransaction) -> SQLiteTransaction:
        entered = enter(transaction)
        begun.set()
        return entered

    monkeypatch.setattr(SQLiteTransaction, "__enter__", noted)
    return begun


async def held_in(path: Path) -> tuple[AsyncStore, ClaimedJob]:
    """A store, and a job that is claimed in it."""
    store = SQLiteState(path).async_store()
    await store.open()
    await start(store, job())
    return store, await claim_one(store)


async def test_a_transaction_that_nobody_comes_for_is_begun_again(path: Path, begun: threading.Event) -> None:
    store, held = await held_in(path)

    async def ends() -> None:
        async with store.transaction(held) as transaction:
            transaction.connection.execute("CREATE TABLE mine (key TEXT)")
            await transaction.finish(complete(held))

    finish = asyncio.create_task(ends())
    await asyncio.sleep(0)
    # The event loop does nothing else meanwhile.
    assert begun.wait(WAIT)
    write(path)
    await finish
    assert (await read(store, held.id)).status is JobStatus.COMPLETED
    await store.aclose()


async def test_the_last_finish_is_committed_without_the_event_loop(path: Path) -> None:
    store, held = await held_in(path)
    async with store.transaction(held) as transaction:
        finish = asyncio.create_task(transaction.finish(complete(held), last=True))
        await asyncio.sleep(0)
        write(path)  # The event loop does nothing else meanwhile.
        assert (await finish).written
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
