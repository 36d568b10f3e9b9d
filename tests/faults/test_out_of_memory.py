"""Handlers that take all memory: their attempts fail or their process dies, and the other jobs are completed."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from queuert import AsyncClient, InProcessWorker, NewChain, PostgresState
from queuert.errors import JobFailedError
from queuert.testing.events import EventLog
from tests.faults.hoarding import JOB_TYPES, frugal, hoard, processors
from tests.support.waiting import WAIT, until
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.fault

WAYS = pytest.mark.parametrize("how", ["released", "kept", "fatal"])


@pytest.fixture(autouse=True)
def _no_core_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(PostgresState(dsn), JOB_TYPES, observability=EventLog()) as client:
        yield client


async def ends(client: AsyncClient, how: str) -> None:
    """A job that takes all memory fails at the cap of its attempts; the others, before and after it, are completed."""
    before = await client.start_chains([NewChain(frugal, number) for number in range(5)])
    bad = await client.start_chain(hoard, how)
    with pytest.raises(JobFailedError):
        await bad.result(2 * WAIT)
    after = await client.start_chains([NewChain(frugal, number) for number in range(5, 10)])
    assert [await chain.result(2 * WAIT) for chain in before + after] == list(range(10))
    job = await client.get_job(bad.id)
    assert job.attempt == 2
    assert job.last_error is not None


@pytest.mark.quick
@WAYS
async def test_in_a_process_for_handlers(client: AsyncClient, how: str) -> None:
    """At most the child process dies; the worker has its own memory, and continues."""
    async with InProcessWorker(client, processors(elsewhere=True), name="worker", concurrency=2):
        await ends(client, how)


@asynccontextmanager
async def workers(dsn: str, count: int) -> AsyncIterator[None]:
    """Run so many workers, and replace each that dies, as an orchestrator does."""
    running: list[WorkerProcess] = []
    gone: list[WorkerProcess] = []

    def begun() -> WorkerProcess:
        return WorkerProcess("-m", "tests.faults.hoarding", url=dsn, records=dsn)

    async def replace() -> None:
        while True:
            await until(lambda: any(one.has_ended for one in running), "one has died", timeout=3600)
            gone.extend(one for one in running if one.has_ended)
            running[:] = [begun() if one.has_ended else one for one in running]

    running += [begun() for _ in range(count)]
    replacing = asyncio.create_task(replace())
    try:
        yield
    finally:
        replacing.cancel()
        with suppress(asyncio.CancelledError):
            await replacing
        for process in running + gone:
            process.close()


@pytest.mark.parametrize("how", ["released", "fatal"])
async def test_in_the_worker_itself(client: AsyncClient, dsn: str, how: str) -> None:
    """It fails the attempt, or kills the worker, which counts as well."""
    async with workers(dsn, 1):
        await ends(client, how)


async def test_in_workers_that_neither_work_nor_die(client: AsyncClient, dsn: str) -> None:
    """Not even the event loop gets memory there: the leases expire, and a worker with memory takes over."""
    async with workers(dsn, 3):
        await ends(client, "kept")
