"""Who waits for the one writer: the transactions of one store in turn, and what is short looks more often."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from queuert.errors import ClosedError, LeaseLostError, StateUnavailableError
from queuert.jobs import JobStatus
from queuert.policies import RetryPolicy
from queuert.state._asyncio import async_turn
from queuert.state.async_store import AsyncStore
from queuert.state.paging import JobFilter, PageRequest
from queuert.state.sqlite import SQLiteState
from queuert.state.sqlite.store import SQLiteStore
from queuert.state.steps import NewStep
from queuert.state.threaded import _Crew, as_async
from queuert.state.types import ClaimedJob, ReapRequest
from queuert.testing.conformance.builders import ask, claim_one, complete, job, read
from tests.support.waiting import WAIT

_KEEN = 50
"""Milliseconds after which SQLite's pauses begin anew with the short ones."""


@pytest.fixture
def stores(path: Path) -> Iterator[list[SQLiteStore]]:
    """Two of one file: one that waits for long, and one that does not."""
    opened = [SQLiteState(path, answer_timeout=timeout).sync_store() for timeout in (WAIT, 0.2)]
    for store in opened:
        store.open()
    yield opened
    for store in opened:
        store.close()


def claimed(store: SQLiteStore) -> list[ClaimedJob]:
    """Two jobs that are held."""
    store.start_jobs([job(), job()])
    return store.claim(ask())


@pytest.mark.parametrize("writes", ["nothing", "its finish"])
def test_a_transaction_that_is_longer_than_the_lease_keeps_it(stores: list[SQLiteStore], writes: str) -> None:
    """Its lease could not be renewed meanwhile, and a reaper may be the next to write."""
    one, _ = claimed(stores[0])
    with stores[0].transaction(one) as transaction:
        transaction.connection.execute("UPDATE queuert_job SET lease_expires_at = 0 WHERE id = ?", [one.id])
        transaction._begun_at = 0
        if writes == "its finish":
            transaction.finish(complete(one))
    assert stores[1].reap(ReapRequest({one.type: RetryPolicy()})).reaped == []
    assert stores[0].lost_reasons([one.lease]) == [None]


@pytest.mark.parametrize("other", [0, 1], ids=["of another store", "of the same"])
def test_a_transaction_waits_for_another_no_longer_than_for_an_answer(stores: list[SQLiteStore], other: int) -> None:
    one, two = claimed(stores[0])
    with stores[other].transaction(one) as transaction:
        with (
            pytest.raises(StateUnavailableError, match="kept the database locked for too long"),
            stores[1].transaction(two),
        ):
            raise AssertionError("it has begun")
        transaction.finish(complete(one))
    with stores[1].transaction(two) as transaction:
        transaction.finish(complete(two))


def test_a_failed_beginning_gives_the_turn_back(stores: list[SQLiteStore]) -> None:
    store = stores[0]
    one, two = claimed(store)
    store.finish([complete(one)])
    with pytest.raises(LeaseLostError), store.transaction(one):
        raise AssertionError("it has begun")
    with store.transaction(two) as transaction:
        transaction.finish(complete(two))


def test_a_store_that_is_closed_lets_nobody_have_a_turn(stores: list[SQLiteStore]) -> None:
    store = stores[0]
    one, two = claimed(store)
    errors: list[BaseException] = []
    begun = threading.Event()

    def begin() -> None:
        begun.set()
        try:
            with store.transaction(two):
                raise AssertionError("it has begun")
        except BaseException as error:
            errors.append(error)

    waiting = threading.Thread(target=begin, daemon=True)
    is_cut_off = pytest.raises(StateUnavailableError, match="interrupted")
    with is_cut_off, store.transaction(one):
        waiting.start()
        assert begun.wait(WAIT)
        store.close()
    waiting.join(WAIT)
    assert [type(error) for error in errors] == [ClosedError]


def test_what_is_short_looks_often(stores: list[SQLiteStore], path: Path) -> None:
    """Again, too, when it has connected anew after a fork; and never for longer than it is to wait at all."""
    main = stores[0]._links.main
    assert main.connection.execute("PRAGMA busy_timeout").fetchone() == (_KEEN,)
    assert main.suspend(WAIT)
    main.resume()
    with main.held() as connection:
        assert connection.execute("PRAGMA busy_timeout").fetchone() == (_KEEN,)
    hasty = SQLiteState(path, answer_timeout=0.01).sync_store()
    hasty.open()
    assert hasty._links.main.connection.execute("PRAGMA busy_timeout").fetchone() == (10,)
    hasty.close()


def test_forks_wait_for_a_transaction_once(stores: list[SQLiteStore], monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a block's whose event loop the fork blocks. The next transaction is waited for again."""
    link = stores[0]._links.main
    waits: list[float] = []

    acquire = link._lock.acquire

    def look(holder: object, timeout: float = 0.0) -> bool:
        waits.append(timeout)
        return acquire(holder)

    monkeypatch.setattr(link._lock, "acquire", look)
    for _ in range(2):
        with link.held():
            waits.clear()
            assert [link.suspend(1.0) for _ in range(3)] == [False] * 3
            assert waits == [1.0, 0.0, 0.0]
    assert link.suspend(1.0)
    link.resume()


# --- threads ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["file", "memory"])
async def narrow(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[AsyncStore]:
    """A store with two threads for each of their uses."""
    state = SQLiteState(path if request.param == "file" else ":memory:")
    store = as_async(state.sync_store(), threads=2)
    await store.open()
    yield store
    await store.aclose()
    state.close()


@pytest.mark.parametrize("waiting", ["transactions", "calls"])
async def test_whoever_has_a_transaction_needs_no_thread_of_those_who_wait(narrow: AsyncStore, waiting: str) -> None:
    """With one set of threads the transaction could not end before the others had given up."""
    await narrow.start_jobs([job() for _ in range(9)])
    held = [await claim_one(narrow) for _ in range(9)]

    async def finish_in_a_transaction(one: ClaimedJob) -> None:
        async with narrow.transaction(one) as transaction:
            await transaction.finish(complete(one))

    async with asyncio.timeout(WAIT), asyncio.TaskGroup() as others, narrow.transaction(held[0]) as transaction:
        for one in held[1:]:
            others.create_task(
                finish_in_a_transaction(one) if waiting == "transactions" else narrow.finish([complete(one)])
            )
        await async_turn()
        await transaction.record_step(NewStep(1, "first", 1, "1"))
        await transaction.finish(complete(held[0]))
    statuses = {(await read(narrow, one.id)).status for one in held}
    assert statuses == {JobStatus.COMPLETED}


async def test_a_transaction_of_a_caller_needs_no_thread_of_those_who_wait(path: Path) -> None:
    store = as_async(SQLiteState(path).sync_store(), threads=2)
    await store.open()
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        async with asyncio.timeout(WAIT), asyncio.TaskGroup() as others:
            connection.execute("BEGIN IMMEDIATE")
            for _ in range(8):
                others.create_task(store.start_jobs([job()]))
            await async_turn()
            await store.start_jobs([job()], connection=connection)
            connection.execute("COMMIT")
    assert [(one.type, one.count) for one in await store.count_jobs()] == [("work", 9)]
    await store.aclose()


_AT_EXIT = """
import asyncio, sys, threading

main_ended, claimed = threading.Event(), threading.Event()
threading._register_atexit(main_ended.set)  # Before that of concurrent.futures, so that it is called after it.

from queuert.state.sqlite import SQLiteState
from queuert.testing.conformance.builders import ask, complete, job


async def work() -> None:
    store = SQLiteState(sys.argv[1]).async_store()
    await store.open()
    await store.start_jobs([job()])
    (one,) = await store.claim(ask())
    claimed.set()
    main_ended.wait()
    async with store.transaction(one) as transaction:
        await transaction.finish(complete(one))
    await store.aclose()


threading.Thread(target=lambda: asyncio.run(work())).start()
claimed.wait()
raise SystemExit("the main thread ends")
"""


def test_a_store_works_in_another_thread_after_the_main_thread_has_ended(path: Path) -> None:
    """A worker there still has to write what its handlers return, and to stop."""
    ran = subprocess.run([sys.executable, "-c", _AT_EXIT, path], capture_output=True, text=True, timeout=WAIT)
    assert ran.stderr == "the main thread ends\n"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT status FROM queuert_job").fetchall() == [("completed",)]


async def test_no_more_threads_than_calls_at_once_nor_than_allowed() -> None:
    crew, release = _Crew("crew", 3), threading.Event()
    for _ in range(5):
        await asyncio.wrap_future(crew.submit(lambda: None))
    assert _count("crew_") == 1
    blocked = [crew.submit(lambda: release.wait(WAIT)) for _ in range(9)]
    assert _count("crew_") == 3
    release.set()
    assert await asyncio.gather(*map(asyncio.wrap_future, blocked)) == [True] * 9


async def test_a_call_that_is_cancelled_before_it_begins_is_not_made() -> None:
    crew, release, made = _Crew("crew", 1), threading.Event(), list[str]()
    first = asyncio.wrap_future(crew.submit(lambda: release.wait(WAIT)))
    second = asyncio.wrap_future(crew.submit(lambda: made.append("second")))
    third = asyncio.wrap_future(crew.submit(lambda: made.append("third")))
    second.cancel()
    await async_turn()
    release.set()
    await asyncio.gather(first, third)
    assert made == ["third"]


@pytest.mark.parametrize("how", ["ended", "dropped"])
async def test_threads_end_after_the_calls_that_wait(how: str) -> None:
    crew, release, names = _Crew("crew", 1), threading.Event(), list[threading.Thread]()
    first = crew.submit(lambda: release.wait(WAIT))
    last = crew.submit(lambda: names.append(threading.current_thread()))
    if how == "ended":
        crew.end()
    del crew
    release.set()
    await asyncio.gather(asyncio.wrap_future(first), asyncio.wrap_future(last))
    names[0].join(WAIT)
    assert not names[0].is_alive()


def _count(name: str) -> int:
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


@pytest.mark.parametrize("first", ["the abort", "the commit"])
def test_a_block_that_is_aborted_while_its_event_loop_pauses_says_what_was_written(
    stores: list[SQLiteStore], first: str
) -> None:
    """Both leave the block, in threads: it ended without an error, and nothing of it was committed."""
    one, _ = claimed(stores[0])
    loop, store = asyncio.new_event_loop(), as_async(stores[0], threads=2)
    gates = {None: threading.Event(), StateUnavailableError: threading.Event()}
    left = {None: threading.Event(), StateUnavailableError: threading.Event()}

    async def begin() -> Any:
        return await store.transaction(one).__aenter__()

    async def end() -> asyncio.Task[Any]:
        leaving: asyncio.Task[Any] = asyncio.ensure_future(block.__aexit__(None, None, None))
        await asyncio.sleep(0)
        return leaving

    block = loop.run_until_complete(begin())
    leave = block._leave

    def in_turn(error: BaseException | None, **how: Any) -> Any:
        kind = None if error is None else StateUnavailableError
        assert gates[kind].wait(WAIT)
        try:
            return leave(error, **how)
        finally:
            left[kind].set()

    block._leave = in_turn
    block.connection.execute("UPDATE queuert_job SET priority = 7 WHERE id = ?", [one.id])
    leaving = loop.run_until_complete(end())
    if first == "the abort":
        block.abort()
        gates[StateUnavailableError].set()
        assert left[StateUnavailableError].wait(WAIT)
        gates[None].set()
        with pytest.raises(StateUnavailableError, match="nothing of it was written"):
            loop.run_until_complete(leaving)
    else:
        gates[None].set()
        loop.run_until_complete(leaving)
        gates[StateUnavailableError].set()
        block.abort()
    loop.close()
    [found] = [each for each in stores[0].list_jobs(JobFilter(), PageRequest()).items if each.id == one.id]
    assert found.priority == (0 if first == "the abort" else 7)
