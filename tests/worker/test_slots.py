"""The places in which attempts run: each attempt in a context of its own, a task only for those that wait."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, cast

import pytest

from queuert.worker import prefetch
from queuert.worker.prefetch import Slots
from tests.support.waiting import in_time

mark: ContextVar[str] = ContextVar("mark", default="unset")

Attempt = Callable[[], Awaitable[object]]


class Runner:
    """Runs one attempt, as the worker's runner does."""

    def __init__(self, row: Row, attempt: Attempt) -> None:
        self.row = row
        self.attempt = attempt

    def run(self, task: asyncio.Task[None]) -> Coroutine[Any, Any, bool]:
        """What a slot runs."""
        return self.row.run(self.attempt, task)

    def keep_context(self, context: Context) -> None:
        """Nobody reports of it."""

    def release(self) -> None:
        """It could not be begun with."""
        self.row.released.append(self.attempt)


class Row:
    """Attempts that wait in a row for slots."""

    def __init__(self, slots: int, *attempts: Attempt) -> None:
        self.waiting = deque(attempts)
        self.tasks: list[asyncio.Task[object] | None] = []
        self.over = asyncio.Event()
        self.released: list[Attempt] = []
        self.slots = Slots(slots, cast(Any, self))

    def next_attempt(self) -> Runner | None:
        """What the slots take, as from the prefetch."""
        return Runner(self, self.waiting.popleft()) if self.waiting else None

    async def run(self, attempt: Attempt, task: asyncio.Task[None]) -> bool:
        assert task is asyncio.current_task()
        self.tasks.append(task)
        try:
            await attempt()
        except asyncio.CancelledError:
            task.uncancel()
            return False
        finally:
            if not self.waiting:
                self.over.set()
        return True

    async def all(self) -> None:
        """Run them all."""
        self.slots.start_next()
        await in_time(self.over.wait())


async def quick() -> None:
    """An attempt that never waits."""


async def test_attempts_that_never_wait_share_a_task() -> None:
    row = Row(10, *[quick] * 50)
    await row.all()
    assert len(row.tasks) == 50
    assert len(set(row.tasks)) == 1


async def test_attempts_that_wait_run_at_once_each_in_a_task_of_its_own() -> None:
    together = asyncio.Barrier(5)
    row = Row(5, *[together.wait] * 5)
    await row.all()
    assert len(set(row.tasks)) == 5


async def test_no_more_at_once_than_places() -> None:
    inside, most = 0, 0

    async def attempt() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    await Row(3, *[attempt] * 30).all()
    assert most == 3


@pytest.mark.parametrize("waits", [False, True])
async def test_what_an_attempt_sets_ends_with_it(waits: bool) -> None:
    seen: list[str] = []
    mark.set("of the worker")

    async def attempt() -> None:
        seen.append(mark.get())
        mark.set("of an attempt")
        if waits:
            await asyncio.sleep(0)
            seen.append(mark.get())

    await Row(1, attempt, attempt).all()
    assert seen == (["of the worker", "of an attempt"] if waits else ["of the worker"]) * 2


async def test_a_cancelled_attempt_does_not_reach_the_next() -> None:
    """Neither when it waits, nor when it cancels itself and ends without waiting."""
    ended: list[str] = []

    async def waits() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        await asyncio.sleep(10)

    async def after() -> None:
        await asyncio.sleep(0)
        ended.append("after")

    row = Row(1, waits, after)
    await row.all()
    assert ended == ["after"]
    assert row.tasks[0] is not row.tasks[1]


async def test_an_attempt_whose_task_is_cancelled_before_it_begins_is_released() -> None:
    """As where a handler cancels all tasks of the event loop: nobody would renew its lease for ever."""
    row = Row(1, quick, quick)
    row.slots.start_next()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await in_time(row.over.wait())
    assert (row.released, len(row.tasks)) == ([quick], 1)


class Clock:
    """One that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(("attempts", "seconds"), [(5_000, 0.0), (20, 1.0)], ids=["many", "long"])
async def test_others_have_their_turn_beside_attempts_that_never_wait(
    monkeypatch: pytest.MonkeyPatch, attempts: int, seconds: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(prefetch, "time", clock)
    turns = 0

    async def passes() -> None:
        clock.now += seconds

    async def bystander() -> None:
        nonlocal turns
        while row.waiting:
            turns += 1
            await asyncio.sleep(0)

    row = Row(1, *[passes] * attempts)
    beside = asyncio.create_task(bystander())
    await row.all()
    await beside
    assert turns >= (20 if seconds else 10)


async def test_time_outs_within_an_attempt_are_its_own() -> None:
    async def late() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.sleep(10)

    row = Row(1, late, late, quick)
    await row.all()
    assert len(row.tasks) == 3


async def test_an_attempt_is_released_where_no_memory_is_left_to_begin_with_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else knows of it, and somebody may be waiting: what was taken is released, and the next one runs."""
    row = Row(1, quick, quick, quick)
    begin, exhausted = row.run, True

    def starved(attempt: Attempt, task: asyncio.Task[None]) -> Coroutine[Any, Any, bool]:
        nonlocal exhausted
        if exhausted:
            exhausted = False
            raise MemoryError
        return begin(attempt, task)

    monkeypatch.setattr(row, "run", starved)
    await row.all()
    assert row.released == [quick]
    assert len(row.tasks) == 2
    # asyncio tells of an exception that nobody asked for when the task is freed.
    gc.collect()
    assert "MemoryError" in caplog.text
