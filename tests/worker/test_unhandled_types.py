"""A worker warns of types with which its jobs continue, or for which they wait, and that no live worker handles."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from queuert import JobType, JobTypes
from queuert.errors import QueuertError, RightMissingError, StateUnavailableError
from queuert.observability.events import JobTypeUnhandled, StoreCallFailed
from queuert.state.sqlite import SQLiteState
from queuert.worker import heartbeat
from queuert.workers import WorkerHeartbeat, WorkerState
from tests.support.harness import Harness
from tests.support.job_types import echo
from tests.support.waiting import START

last = JobType("last", input=int, output=int)
part = JobType("part", input=int, output=int)
after = JobType("after", input=int, output=int)
approve = JobType("approve", input=int, output=int, continues_with=after, completed_by="client")
first = JobType("first", input=int, continues_with=(last, approve), blockers=(part,))
TYPES = JobTypes(first, last, part, approve, after)


@pytest.fixture
async def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
    """Its workers beat all the time, and look at once."""
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.01)
    monkeypatch.setattr(heartbeat, "_LOOKS_AFTER", 0.0)
    harness = Harness(SQLiteState(tmp_path / "jobs.db"), job_types=TYPES)
    yield harness
    await harness.close()


def said(harness: Harness) -> list[tuple[str, str]]:
    return [(one.type, one.needed_by) for one in harness.log.of(JobTypeUnhandled)]


async def test_types_that_nobody_handles(harness: Harness) -> None:
    """Clients complete one of them."""
    harness.handles(first, echo)
    async with harness.worker():
        await harness.log.wait_for(JobTypeUnhandled, times=3, timeout=START)
    assert sorted(said(harness)) == [("after", "approve"), ("last", "first"), ("part", "first")]


async def test_types_that_another_worker_handles(harness: Harness) -> None:
    others = harness.new_processors()
    others.handles(last)(echo)
    harness.handles(first, echo)
    async with harness.worker(others, name="other"), harness.worker():
        await harness.log.wait_for(JobTypeUnhandled, times=3, timeout=START)
    assert sorted(said(harness)) == [*2 * [("after", "approve")], ("part", "first")]


async def test_types_whose_workers_are_stopping(harness: Harness) -> None:
    """They count as types that nobody handles."""
    store = harness.state.async_store()
    await store.open()
    try:
        beat = WorkerHeartbeat("old", "old", "here", 1, "1", ("last", "part"), 1, 0, 0.0, state=WorkerState.STOPPING)
        await store.record_heartbeat(beat, 60.0)
        harness.handles(first, echo)
        async with harness.worker():
            await harness.log.wait_for(JobTypeUnhandled, times=3, timeout=START)
    finally:
        await store.aclose()
    assert sorted(said(harness)) == [("after", "approve"), ("last", "first"), ("part", "first")]


async def test_types_of_which_another_program_says_that_clients_complete_them(harness: Harness) -> None:
    """This one does not know them."""
    types = JobTypes(JobType("before", input=int, output=int, blockers=("approve", "part")))
    alone = Harness(harness.state, job_types=types)
    alone.handles(types["before"], echo)
    harness.handles(last, echo)
    async with harness.worker():
        try:
            async with alone.worker():
                await alone.log.wait_for(JobTypeUnhandled, timeout=START)
        finally:
            await alone.close()
    assert said(alone) == [("part", "before")]


@pytest.mark.parametrize("error", [StateUnavailableError("no answer"), RightMissingError("it may not")])
async def test_a_look_that_fails_is_repeated_or_reported(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, error: QueuertError
) -> None:
    kind = type(harness.state.sync_store())
    read, failures = kind.list_workers, [error]

    def list_workers(store: Any) -> Any:
        if failures:
            raise failures.pop()
        return read(store)

    monkeypatch.setattr(kind, "list_workers", list_workers)
    harness.handles(first, echo)
    passes = isinstance(error, StateUnavailableError)
    async with harness.worker():
        if passes:
            await harness.log.wait_for(JobTypeUnhandled, times=3, timeout=START)
        else:
            await harness.log.wait_for(StoreCallFailed, operation="list_workers", timeout=START)
    assert failures == []
    assert len(said(harness)) == (3 if passes else 0)
