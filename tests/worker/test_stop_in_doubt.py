"""A worker stops while it is unknown whether the finish of a block was committed: only what was written is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from queuert import Attempt, InProcessWorker, JobStatus, Outcome
from queuert.errors import StateUnavailableError
from queuert.observability.events import AttemptInterrupted, AttemptRetried, AttemptSnoozed, FinishFailed
from queuert.state.types import Finish
from queuert.worker.runner import AttemptRunner, AttemptState
from queuert.worker.runtime import WorkerRuntime
from tests.support.harness import PostgresHarness
from tests.support.job_types import anything
from tests.support.waiting import WAIT, in_time, none_left

LOST = StateUnavailableError("the answer to the commit was lost")


class _RolledBack(Exception):
    """Rolls a transaction back."""


@pytest.fixture
def last_wait(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let a stop abandon handlers at once; set when it waits only for the store to answer."""
    began, waits = asyncio.Event(), 0
    wait_until_idle = WorkerRuntime._wait_until_idle

    async def waiting(runtime: WorkerRuntime, seconds: float, hurry: asyncio.Event | None = None) -> bool:
        nonlocal waits
        waits += 1
        if waits == 2:
            return False
        if waits == 3:
            began.set()
        return await wait_until_idle(runtime, seconds, hurry)

    monkeypatch.setattr(WorkerRuntime, "_wait_until_idle", waiting)
    monkeypatch.setattr("queuert.worker.runtime._AFTER_CANCEL", WAIT)
    return began


async def test_a_stop_writes_nothing_while_the_commit_of_a_handler_that_has_ended_is_in_doubt(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch, last_wait: asyncio.Event
) -> None:
    """It was rolled back. What the stop wrote instead looked like it, and the attempt was told of as snoozed, too."""
    in_doubt, answered = asyncio.Event(), asyncio.Event()
    begin, is_committed, abandon = AttemptState.begin, AttemptState._is_committed, WorkerRuntime._abandon

    @asynccontextmanager
    async def losing(state: AttemptState) -> AsyncIterator[Any]:
        with suppress(_RolledBack):
            async with begin(state) as tx:
                yield tx
                raise _RolledBack
        raise LOST

    async def late_answer(state: AttemptState, finish: Finish) -> bool:
        in_doubt.set()
        await last_wait.wait()
        try:
            return await is_committed(state, finish)
        finally:
            answered.set()

    async def abandoned(runtime: WorkerRuntime, runner: AttemptRunner) -> None:
        await abandon(runtime, runner)
        last_wait.set()
        await answered.wait()

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        async with attempt.complete() as tx:
            return tx.finish(attempt.snooze(3600))

    monkeypatch.setattr(AttemptState, "begin", losing)
    monkeypatch.setattr(AttemptState, "_is_committed", late_answer)
    monkeypatch.setattr(WorkerRuntime, "_abandon", abandoned)
    harness.handles(anything, handler)
    worker = harness.worker()
    await worker.start()
    await harness.client.start_chain(anything, None, id="one")
    await in_time(in_doubt.wait())
    await in_time(worker.stop(shutdown_timeout=0))
    assert harness.log.of(AttemptSnoozed) == []
    assert harness.log.of(AttemptInterrupted) == []
    assert len(harness.log.of(AttemptRetried)) == 1, "by the error that its block raised"
    assert (await harness.job("one")).status is JobStatus.READY
    assert worker.abandoned == 0


async def _stop_while_a_handler_goes_on(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch, *, rolls_back: bool
) -> InProcessWorker:
    """Stop a worker whose handler has lost the answer to the commit of its block, and does not end."""
    lost, may_end = threading.Event(), threading.Event()
    begin = AttemptState.begin_in_thread

    @contextmanager
    def losing(state: AttemptState) -> Iterator[Any]:
        with suppress(_RolledBack), begin(state) as tx:
            yield tx
            if rolls_back:
                raise _RolledBack
        raise LOST

    def handler(attempt: Attempt[Any, Any]) -> Any:
        with suppress(StateUnavailableError), attempt.complete() as tx:
            tx.finish(attempt.snooze(3600))
        lost.set()
        may_end.wait(WAIT)

    monkeypatch.setattr(AttemptState, "begin_in_thread", losing)
    harness.handles(anything, handler)
    worker = harness.worker()
    await worker.start()
    try:
        await harness.client.start_chain(anything, None, id="one")
        await asyncio.to_thread(lost.wait, WAIT)
        await in_time(worker.stop(shutdown_timeout=0))
    finally:
        may_end.set()
    return worker


@pytest.mark.usefixtures("last_wait")
async def test_a_stop_asks_for_the_commit_in_doubt_of_a_handler_that_does_not_end(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was committed. The stop took it for its own finish, and told of the attempt as one that is retried."""
    worker = await _stop_while_a_handler_goes_on(harness, monkeypatch, rolls_back=False)
    assert harness.log.of(AttemptRetried) == []
    assert len(harness.log.of(AttemptSnoozed)) == 1
    assert (await harness.job("one")).status is JobStatus.SCHEDULED
    assert worker.abandoned == 1


@pytest.mark.usefixtures("last_wait")
async def test_after_a_stop_has_written_nobody_asks_for_the_commit(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was rolled back, so the stop wrote. The attempt then queried a closed store, and was told of as failed."""
    worker = await _stop_while_a_handler_goes_on(harness, monkeypatch, rolls_back=True)
    await none_left(lambda: [one for one in asyncio.all_tasks() if "Slots._work" in repr(one)], "slots")
    assert harness.log.of(AttemptSnoozed) == []
    assert harness.log.of(FinishFailed) == []
    assert len(harness.log.of(AttemptRetried)) == 1
    assert worker.abandoned == 1
