"""A handler that blocks the event loop: told while it does, with the stack of what blocks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from queuert import Attempt, Outcome
from queuert.observability import events
from queuert.observability.adapter import Observers
from queuert.worker import loop_watch
from tests.support.harness import PostgresHarness
from tests.support.job_types import number
from tests.support.waiting import WAIT


class Heard:
    """Sets an event when it hears of one of these classes."""

    def __init__(self, *kinds: type[events.Event]) -> None:
        self.events: list[Any] = []
        self.heard = {kind: threading.Event() for kind in kinds}

    def emit(self, event: events.Event) -> None:
        if type(event) in self.heard:
            self.events.append(event)
            self.heard[type(event)].set()


def closed() -> None:
    raise AssertionError("the event loop is not closed")


def watch(heard: Heard, find: Callable[[asyncio.Task[Any]], Any] = lambda task: None) -> loop_watch.LoopWatch:
    return loop_watch.LoopWatch(find, closed, worker="w", observers=Observers([heard]), blocked_after=0.01)


async def test_what_blocks_the_loop_is_reported_with_its_stack() -> None:
    heard = Heard(events.EventLoopBlocked, events.EventLoopUnblocked)
    watching = watch(heard)
    watching.start()
    try:
        assert heard.heard[events.EventLoopBlocked].wait(WAIT)
        await asyncio.to_thread(heard.heard[events.EventLoopUnblocked].wait, WAIT)
    finally:
        watching.stop()
    blocked, unblocked = heard.events[:2]
    assert "test_what_blocks_the_loop_is_reported_with_its_stack" in blocked.stack
    assert (blocked.worker, blocked.job_id, type(unblocked)) == ("w", None, events.EventLoopUnblocked)
    assert 0 < blocked.seconds <= unblocked.seconds


async def test_a_report_that_fails_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For want of memory, say."""
    fails = iter([True])

    def format_stack(*_: object) -> list[str]:
        if next(fails, False):
            raise MemoryError
        return ["the stack"]

    monkeypatch.setattr("queuert.worker.loop_watch.traceback.format_stack", format_stack)
    heard = Heard(events.EventLoopBlocked)
    watching = watch(heard)
    watching.start()
    try:
        assert heard.heard[events.EventLoopBlocked].wait(WAIT)
    finally:
        watching.stop()
    assert [event.stack for event in heard.events] == ["the stack"]
    assert "a turn of the thread that watches the event loop has failed" in caplog.text


async def test_an_observer_that_hangs_does_not_keep_a_worker_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "_STOP", 0.01)
    entered, released = threading.Event(), threading.Event()

    def hang(event: object) -> None:
        entered.set()
        released.wait(WAIT)

    observers = Observers([cast("Any", SimpleNamespace(emit=hang))])
    watching = loop_watch.LoopWatch(lambda task: None, closed, worker="w", observers=observers, blocked_after=0.01)
    watching.start()
    try:
        assert entered.wait(WAIT)
        watching.stop()
        assert not released.is_set()
    finally:
        released.set()


async def test_a_loop_that_runs_is_not_reported() -> None:
    heard = Heard(events.EventLoopBlocked)
    observers = Observers([heard])
    watching = loop_watch.LoopWatch(lambda task: None, closed, worker="w", observers=observers, blocked_after=WAIT)
    watching.start()
    watching.stop()
    assert heard.events == []


async def test_it_measures_how_late_the_loop_is() -> None:
    heard = Heard(events.EventLoopBlocked, events.EventLoopUnblocked)
    watching = watch(heard)
    assert (watching.blocked_seconds(), watching.longest_delay()) == (0.0, 0.0)
    watching.start()
    try:
        assert heard.heard[events.EventLoopBlocked].wait(WAIT)
        blocked = watching.blocked_seconds()
        assert 0 < blocked <= watching.longest_delay()
        await asyncio.to_thread(heard.heard[events.EventLoopUnblocked].wait, WAIT)
        assert watching.longest_delay() >= blocked
    finally:
        watching.stop()
    assert watching.blocked_seconds() == 0.0


async def test_a_delay_counts_for_half_a_minute() -> None:
    """The loop is asked once a second, so the last thirty answers are kept."""
    watching = watch(Heard())
    for late in (WAIT, *[0.0] * 29):
        watching._sent_at = time.monotonic() - late
        watching._answer()
    assert watching.longest_delay() >= WAIT
    watching._sent_at = time.monotonic()
    watching._answer()
    assert watching.longest_delay() < WAIT


async def test_it_names_the_job_that_blocks(harness: PostgresHarness) -> None:
    heard = Heard(events.EventLoopBlocked)

    @harness.processors.handles(number)
    async def block(attempt: Attempt[int, int]) -> Outcome[int]:
        runtime = worker._runtime
        assert runtime is not None
        watching = watch(heard, runtime._runs_in_loop)
        watching.start()
        assert heard.heard[events.EventLoopBlocked].wait(WAIT)
        watching.stop()
        return 1

    async with harness.worker() as worker:
        chain = await harness.client.start_chain(number, 1)
        await chain.result(WAIT)
    blocked = heard.events[0]
    assert (blocked.job_id, blocked.type) == (chain.id, "number")
    assert "in block" in blocked.stack
