"""A server that stops or is killed: no acknowledged chain is lost, no effect is committed twice, no worker dies of
it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from queuert import AsyncChain, AsyncClient, NewChain, PostgresState, migrations
from queuert.embedded import EmbeddedPostgres
from queuert.errors import StateUnavailableError
from queuert.observability.events import LoopFailed, LoopRecovered, StoreCallFailed, WorkerStarted, WorkerStopped
from tests.conftest import StartPostgres
from tests.faults.application import JOB_TYPES, quick
from tests.faults.harness import FaultHarness
from tests.support.waiting import WAIT, until
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.fault

MANY = 50


@pytest.fixture
def server(private_postgres: StartPostgres) -> EmbeddedPostgres:
    """Yield a server that keeps acknowledged writes, with the schema."""
    server = private_postgres(settings={"fsync": "off"})  # The machine itself does not crash.
    migrations.upgrade(server.dsn())
    return server


@pytest.fixture
async def harness(server: EmbeddedPostgres) -> AsyncIterator[FaultHarness]:
    """Yield the harness, on a server of the test's own."""
    harness = FaultHarness(server.dsn())
    try:
        yield harness
        if not server.running:
            await asyncio.to_thread(server.start)
        harness.witness.connect()
        harness.witness.check()
    finally:
        await harness.close()


class Producer:
    """Starts chains without a pause, and remembers the acknowledged ones."""

    def __init__(self, dsn: str) -> None:
        self.acknowledged: list[str] = []
        self.refused = 0
        self._client = AsyncClient(PostgresState(dsn), JOB_TYPES)
        self._enough = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self._client:
            while not self._enough.is_set():
                try:
                    chains = await self._client.start_chains([NewChain(quick, number) for number in range(5)])
                except StateUnavailableError:
                    self.refused += 1
                    await asyncio.sleep(0.05)
                else:
                    self.acknowledged += [chain.id for chain in chains]

    async def more(self, count: int) -> None:
        """Wait until so many more chains were acknowledged."""
        wanted = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= wanted, "chains are started")

    async def stop(self) -> None:
        """Start no more chains."""
        self._enough.set()
        await self._task


async def troubled(process: WorkerProcess) -> None:
    """Wait until the worker has noticed the outage: with all slots occupied by a finish, otherwise by a claim."""
    await until(lambda: process.log.of(LoopFailed) or process.log.of(StoreCallFailed), "the worker has met the outage")


async def recovered(process: WorkerProcess) -> None:
    """Wait until each loop that has failed works again."""
    for failed in {event.loop for event in process.log.of(LoopFailed)}:
        await process.log.wait_for(LoopRecovered, loop=failed)


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_under_load(server: EmbeddedPostgres, harness: FaultHarness, how: str) -> None:
    processes = [harness.spawn(concurrency=20, poll_interval=0.1) for _ in range(2)]
    for process in processes:
        await process.started()
    producer = Producer(server.dsn())
    await producer.more(MANY)
    await asyncio.to_thread(server.stop if how == "stopped" else server.kill)
    for process in processes:
        await troubled(process)
    await until(lambda: producer.refused, "a start fails")
    await asyncio.to_thread(server.start)
    harness.witness.connect()
    await producer.more(MANY)
    await producer.stop()

    open_chains = "select count(*) from queuert.job where status <> 'completed'"
    await until(lambda: harness.witness.one(open_chains) == 0, "all chains are completed", 2 * WAIT)
    stored = {row[0] for row in harness.witness.rows("select id from queuert.job")}
    assert stored >= set(producer.acknowledged)
    effects = [row[0] for row in harness.witness.rows("select job_id from effect")]
    assert sorted(effects) == sorted(stored)
    for process in processes:
        await recovered(process)
        assert len(process.log.of(WorkerStarted)) == 1
        assert process.log.of(WorkerStopped) == []
        assert not process.has_ended


@pytest.mark.quick
async def test_an_idle_worker(server: EmbeddedPostgres, harness: FaultHarness) -> None:
    """Its loops report that they fail, and that they work again, every time."""
    # Only the first loop that notices the outage fails at once. The others wait for a connection for their whole
    # timeout.
    process = harness.spawn(poll_interval=0.1, answer_timeout=5.0)
    await process.started()
    for number in range(2):
        chain = await harness.client.start_chain(quick, number)
        assert await chain.result(WAIT) == number
        process.log.forget()
        await asyncio.to_thread(server.kill)
        await process.log.wait_for(LoopFailed, loop="claimer")
        await asyncio.to_thread(server.start)
        await recovered(process)
        harness.witness.connect()
        await started_again(harness)
    assert not process.has_ended


async def started_again(harness: FaultHarness) -> None:
    """The client, whose connections broke as well, starts a chain as soon as it can, and the worker runs it."""
    chain: AsyncChain[int] | None = None
    async with asyncio.timeout(WAIT):
        while chain is None:
            try:
                chain = await harness.client.start_chain(quick, 0)
            except StateUnavailableError:
                await asyncio.sleep(0.05)
    assert await chain.result(WAIT) == 0
