"""A worker process ends whoever stops its worker: a signal, the program itself, or nothing left to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from queuert import AsyncClient, Attempt, Client, InProcessWorker, JobType, JobTypes, Processors
from queuert.errors import StateError
from queuert.state.sqlite import SQLiteState
from queuert.worker.run import ExitCode, run

pytestmark = pytest.mark.timeout(60)

work = JobType("work", input=int, output=int)
TYPES = JobTypes(work)


class Program:
    """A worker, and the only job of its store."""

    def __init__(self, path: Path) -> None:
        state = SQLiteState(path / "queue.db")
        with Client(state, TYPES) as client:
            self.chain = client.start_chain(work, 1).id
        self.state = state
        processors = Processors(TYPES)
        processors.handles(work)(self.handle)
        self.worker = InProcessWorker(AsyncClient(state, TYPES), processors, concurrency=1)
        self.then: Callable[[], Awaitable[None]] | None = None

    async def handle(self, attempt: Attempt[int, int]) -> int:
        if self.then is not None:
            await self.then()
        return 7

    def output(self) -> int | None:
        with Client(self.state, TYPES) as client:
            return client.get_chain(self.chain, work).output


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.mark.parametrize("how", ["task", "awaited", "callback"])
def test_a_handler_that_stops_its_worker(program: Program, how: str) -> None:
    """Its job is completed, or released if it waits for the stop that waits for it."""
    tasks: list[asyncio.Task[None]] = []

    async def stop() -> None:
        loop = asyncio.get_running_loop()
        if how == "task":
            tasks.append(loop.create_task(program.worker.stop()))
        elif how == "awaited":
            await program.worker.stop(shutdown_timeout=0)
        else:
            loop.call_soon(lambda: tasks.append(loop.create_task(program.worker.stop())))

    program.then = stop
    assert run(program.worker) is ExitCode.STOPPED
    assert program.output() == (None if how == "awaited" else 7)


def test_once_that_cannot_know_whether_jobs_are_due(
    program: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A right that was not granted, say: it ends, and says why, within its budget and without one."""

    async def refused() -> bool:
        raise StateError("permission denied for table job")

    monkeypatch.setattr(program.worker, "is_idle", refused)
    assert run(program.worker, once=True) is ExitCode.UNAVAILABLE
    assert "cannot read whether jobs are due, so the worker stops: permission denied for table job" in caplog.text
