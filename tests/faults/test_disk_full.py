"""A server whose disk is full: it rejects starts, finishes wait, and all jobs end when there is space again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from queuert import AsyncChain, Attempt, JobType, JobTypes, NewChain, Outcome, PostgresState, RetryPolicy, migrations
from queuert.embedded import EmbeddedServerError
from queuert.errors import StateError
from queuert.observability.events import AttemptRetried, FinishFailed, LoopFailed, LoopRecovered, StoreCallFailed
from queuert.policies import LeasePolicy
from tests.conftest import server_is_missing
from tests.faults.application import EFFECT
from tests.faults.disks import SmallDisk, limited_files, small_file_system
from tests.faults.witness import Witness
from tests.support.harness import Harness
from tests.support.waiting import WAIT, until

pytestmark = pytest.mark.fault

GREAT = 800_000
"""Bytes of an input, and of an output: more than the free space inside of existing files."""
MOST = 60
SOON = RetryPolicy(initial_delay=0.2, max_delay=0.5, max_attempts=1000)

completing = JobType("quick", input=str, output=str)
returning = JobType("returning", input=str, output=str)


def great() -> str:
    """Return a text that cannot be compressed much."""
    return os.urandom(GREAT // 2).hex()


async def completes(attempt: Attempt[str, str]) -> Outcome[str]:
    async with attempt.complete() as tx:
        await tx.connection.execute(EFFECT, (attempt.job_id, attempt.number))
        return tx.finish(great())


async def returns(attempt: Attempt[str, str]) -> Outcome[str]:
    return great()


@pytest.fixture(params=[small_file_system, limited_files], ids=["file system", "files"])
def disk(request: pytest.FixtureRequest) -> Iterator[SmallDisk]:
    with request.param() as disk:
        try:
            disk.server.start()
        except EmbeddedServerError as error:
            server_is_missing(error)
        migrations.upgrade(disk.server.dsn())
        yield disk


class DiskHarness(Harness):
    """A client, and a worker whose handlers write much."""

    def __init__(self, dsn: str) -> None:
        super().__init__(PostgresState(dsn), job_types=JobTypes(completing, returning), poll_interval=0.1)
        self.processors = self.new_processors(retry=SOON, lease=LeasePolicy(seconds=10.0))
        self.handles(completing, completes)
        self.handles(returning, returns)

    async def refused(self) -> list[AsyncChain[str]]:
        """Start chains until one is rejected; return the acknowledged ones."""
        started: list[AsyncChain[str]] = []
        while len(started) < MOST:
            try:
                started += await self.client.start_chains([NewChain(completing, great()), NewChain(returning, great())])
            except StateError:
                return started
        raise AssertionError("there is room for all")

    def is_in_trouble(self) -> bool:
        """Whether the worker failed to write its finishes."""
        return any(self.log.of(event) for event in (StoreCallFailed, LoopFailed, AttemptRetried, FinishFailed))


@pytest.fixture
async def harness(disk: SmallDisk) -> AsyncIterator[DiskHarness]:
    harness = DiskHarness(disk.server.dsn())
    yield harness
    await harness.close()


async def comes_back(disk: SmallDisk, witness: Witness) -> None:
    """Wait until the server answers. It may have crashed and recover by itself, or fail to recover without space."""
    async with asyncio.timeout(WAIT):
        while True:
            if not disk.server.running:
                await asyncio.to_thread(disk.server.start)
            try:
                witness.connect()
            except psycopg.OperationalError:
                await asyncio.sleep(0.01)
            else:
                return


@pytest.mark.quick
async def test_it_is_full_for_a_while(disk: SmallDisk, harness: DiskHarness) -> None:
    witness = Witness(disk.server.dsn())
    chains = await harness.client.start_chains([NewChain(completing, great()), NewChain(returning, great())])
    await asyncio.to_thread(disk.fill)
    chains += await harness.refused()
    await harness.worker(concurrency=4).start()
    await until(harness.is_in_trouble, "the worker has met the full disk")
    disk.free()
    await comes_back(disk, witness)
    for chain in chains:
        assert len(await chain.result(2 * WAIT)) == GREAT
    for failed in {event.loop for event in harness.log.of(LoopFailed)}:
        await harness.log.wait_for(LoopRecovered, loop=failed)
    stored = {row[0] for row in witness.rows("select id from queuert.job")}
    assert stored == {chain.id for chain in chains}
    witness.check()
    witness.close()
