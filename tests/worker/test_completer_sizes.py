"""Finishes are written by size as well as by number, and one that no connection survives harms only itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from queuert.errors import StateError, StateUnavailableError
from queuert.jobs import AbortReason
from queuert.observability.adapter import Observers
from queuert.policies import Backoff
from queuert.state.async_store import AsyncStore
from queuert.state.types import ClaimedJob, Finish, FinishKind, FinishResult, Lease
from queuert.testing.events import EventLog
from queuert.worker.completer import Completer
from queuert.worker.leases import HeldLease
from queuert.worker.telemetry import FinishReport
from tests.support.waiting import in_time

LARGE = 1024 * 1024
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def finish(name: str, size: int) -> Finish:
    """A finish with an output of so many characters."""
    job = ClaimedJob(name, "work", name, "work", 0, 0, 1, 0, 0, 0, False, "1", NOW, NOW, NOW, 60.0, "token")
    return Finish(job, FinishKind.COMPLETE, "1" * size)


class Store:
    """Notes the statements that it is sent; ``trouble`` raises for some."""

    def __init__(self, trouble: Callable[[Sequence[Finish]], None] = lambda finishes: None) -> None:
        self.statements: list[list[str]] = []
        self.away = False
        self._trouble = trouble

    async def finish(self, finishes: Sequence[Finish], *, wait: bool) -> list[FinishResult]:
        """Write them, or fail."""
        self.statements.append([one.job.id for one in finishes])
        await asyncio.sleep(0)
        self._trouble(finishes)
        return [FinishResult(one.job.id) for one in finishes]

    async def lost_reasons(self, leases: Sequence[Lease]) -> list[AbortReason | None]:
        """What is asked of a store to see whether it is there."""
        if self.away:
            raise StateUnavailableError("away")
        return [None] * len(leases)


class Author:
    """The runner, the reporter and the slots of finishes: notes the result of each."""

    context = None
    duration = 0.0
    held = SimpleNamespace(claimed_at=0.0)

    def __init__(self) -> None:
        self.written: list[str] = []
        self.errors: list[Exception] = []
        self.changed = asyncio.Event()

    def on_finish_waits(self) -> None:
        """It goes on."""

    def on_rejected(self, finish: Finish, error: Exception) -> None:
        """It is not written."""
        self.errors.append(error)
        self.changed.set()

    def finished(self, reports: Sequence[FinishReport]) -> None:
        """They are."""
        self.written += [finish.job.id for finish, *_ in reports]
        self.changed.set()

    def cleanup(self) -> None:
        """It is over."""

    def start_next(self) -> None:
        """No other attempt waits."""

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until so much is told."""
        while not condition():
            self.changed.clear()
            await in_time(self.changed.wait())


@pytest.fixture(autouse=True)
def _one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """One statement after the other."""
    monkeypatch.setattr("queuert.worker.completer._CONCURRENT_FLUSHES", 1)


@asynccontextmanager
async def completing(store: Store, author: Author) -> AsyncIterator[Completer]:
    """A completer at work, which does not pause."""
    completer: Completer = Completer(
        cast(AsyncStore, store), cast(Any, author), cast(Any, author), worker="w", observers=Observers([EventLog()])
    )
    completer._backoff = Backoff(initial_delay=0.0, max_delay=0.0)
    completer.start()
    yield completer
    await completer.stop()


async def test_a_batch_is_cut_where_its_texts_become_too_long() -> None:
    store, author = Store(), Author()
    async with completing(store, author) as completer:
        for name in "abcde":
            completer.submit(finish(name, 7 * LARGE), cast(Any, author))
        assert completer.characters == 35 * LARGE
        await author.until(lambda: len(author.written) == 5)
        assert completer.characters == 0
    assert store.statements == [["a", "b"], ["c", "d"], ["e"]]


async def test_an_finish_that_is_larger_than_a_batch_goes_alone() -> None:
    store, author = Store(), Author()
    async with completing(store, author) as completer:
        for name, size in (("a", 10), ("b", 20 * LARGE), ("c", 10)):
            completer.submit(finish(name, size), cast(Any, author))
        await author.until(lambda: len(author.written) == 3)
    assert store.statements == [["a"], ["b"], ["c"]]


async def test_a_batch_that_breaks_its_connection_is_requested_for_in_halves() -> None:
    def trouble(finishes: Sequence[Finish]) -> None:
        if len(finishes) > 2:
            raise StateUnavailableError("too much at once")

    store, author = Store(trouble), Author()
    async with completing(store, author) as completer:
        for name in "abcdefgh":
            completer.submit(finish(name, LARGE), cast(Any, author))
        await author.until(lambda: len(author.written) == 8)
    assert store.statements[:3] == [list("abcdefgh"), list("abcd"), list("ab")]
    assert author.written == list("abcdefgh")


async def test_a_large_finish_that_breaks_every_connection_is_refused_and_holds_up_nobody() -> None:
    def trouble(finishes: Sequence[Finish]) -> None:
        if any(one.job.id == "bad" for one in finishes):
            raise StateUnavailableError("the connection is lost")

    store, author = Store(trouble), Author()
    async with completing(store, author) as completer:
        for name in ("a", "bad", "b", "c", "d"):
            completer.submit(finish(name, LARGE), cast(Any, author))
        await author.until(lambda: bool(author.errors) and len(author.written) == 4)
        assert completer.characters == 0
    [error] = author.errors
    assert isinstance(error, StateError)
    assert not isinstance(error, StateUnavailableError)
    assert "1,048,576 characters" in str(error)
    assert sorted(author.written) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("size", "away"), [(10, False), (LARGE, True)], ids=["small", "the store is away"])
async def test_an_finish_is_not_refused_for_an_outage(size: int, away: bool) -> None:
    """A small one is never, and a large one not while nothing else is answered either."""
    failures = 20

    def trouble(finishes: Sequence[Finish]) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise StateUnavailableError("away")

    store, author = Store(trouble), Author()
    store.away = away
    async with completing(store, author) as completer:
        completer.submit(finish("a", size), cast(Any, author))
        await author.until(lambda: bool(author.written))
    assert author.errors == []
    assert len(store.statements) == 21


async def test_an_finish_that_waits_to_be_requested_for_again_is_given_up_when_the_worker_stops() -> None:
    def trouble(finishes: Sequence[Finish]) -> None:
        raise StateUnavailableError("the connection is lost")

    store, author = Store(trouble), Author()
    async with completing(store, author) as completer:
        completer._backoff = Backoff(initial_delay=3600.0, max_delay=3600.0)
        completer.submit(finish("a", LARGE), cast(Any, author))
        while not completer._delayed:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert [type(one) for one in author.errors] == [StateUnavailableError]
    assert completer.characters == 0


async def test_one_that_is_refused_leaves_the_others_of_its_batch_in_order() -> None:
    def trouble(finishes: Sequence[Finish]) -> None:
        if any(one.job.id == "bad" for one in finishes):
            raise ValueError("no")

    store, author = Store(trouble), Author()
    async with completing(store, author) as completer:
        for name in ("a", "b", "bad", "c", "d"):
            completer.submit(finish(name, 10), cast(Any, author))
        await author.until(lambda: len(author.written) == 4)
    assert author.written == ["a", "b", "c", "d"]
    assert [type(one) for one in author.errors] == [ValueError]


async def test_those_that_wait_behind_others_are_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each statement takes 20 seconds of a lease of 10, and ten are needed: all leases are renewed until the end."""
    now = 0.0
    monkeypatch.setattr("queuert.worker.completer.lease_time", lambda: now)
    author, stuck = Author(), set[str]()

    class Waiting(Author):
        def __init__(self, one: Finish) -> None:
            super().__init__()
            self.held: Any = HeldLease(replace(one.job, lease_seconds=10.0), 3.0, now, cast(Any, self))
            self.held.finish_since = now

        def on_finish_waits(self) -> None:
            self.held.finish_since = now

    def slow(finishes: Sequence[Finish]) -> None:
        nonlocal now
        now += 20.0
        written = {*author.written, *(one.job.id for one in finishes)}
        stuck.update(id for id, one in waiting.items() if id not in written and one.held.is_stuck(now))

    finishes = [finish(name, 10 * LARGE) for name in "abcdefghij"]
    waiting = {one.job.id: Waiting(one) for one in finishes}
    lost = Waiting(finishes[0])
    async with completing(Store(slow), author) as completer:
        for one in finishes:
            completer.submit(one, cast(Any, waiting[one.job.id]))
        await author.until(lambda: len(author.written) == 10)
    assert stuck == set()
    assert lost.held.is_stuck(now)  # One that the completer does not know of.
