"""Many large inputs and outputs in a worker whose memory is bounded: claims and finishes are bounded by bytes."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from queuert import AsyncClient, NewChain
from queuert.observability.events import AttemptCompleted, AttemptStarted, JobReaped, LoopFailed, StoreCallFailed
from tests.faults.large import JOB_TYPES, MEGABYTE, consume, produce
from tests.support.waiting import START, until
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.fault


@pytest.fixture(params=["postgres", "redis", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Yield the address of each store."""
    fixtures = {"postgres": "dsn", "redis": "redis_url"}
    name = fixtures.get(request.param)
    return str(request.getfixturevalue(name)) if name else f"sqlite:///{tmp_path / 'jobs.db'}"


@asynccontextmanager
async def bounded_worker(url: str, **settings: Any) -> AsyncIterator[WorkerProcess]:
    """Return a worker process with so many ``megabytes``."""
    process = WorkerProcess("-m", "tests.faults.large", json.dumps(settings), url=url, records=url)
    try:
        yield process
    finally:
        process.close()


async def all_at_the_first_attempt(process: WorkerProcess, count: int) -> None:
    """All jobs are completed, without any failure on the way."""
    try:
        await until(lambda: len(process.log.of(AttemptCompleted)) == count, "all are completed", 2 * START)
    except AssertionError as error:
        kinds = Counter(type(event).__name__ for event in process.log.events)
        troubles = [*process.log.of(LoopFailed), *process.log.of(StoreCallFailed), *process.log.of(JobReaped)]
        raise AssertionError(f"{error}; peak {process.peak_megabytes} MB, {dict(kinds)}, {troubles}") from None
    assert len(process.log.of(AttemptStarted)) == count
    assert [*process.log.of(LoopFailed), *process.log.of(StoreCallFailed), *process.log.of(JobReaped)] == []


async def drain(url: str, text: str) -> None:
    """Run 100 jobs with this input, in as many slots."""
    async with AsyncClient.from_url(url, JOB_TYPES) as client:
        for _ in range(4):
            await client.start_chains([NewChain(consume, text)] * 25)
    async with bounded_worker(url, megabytes=200, concurrency=100, claim_bytes=16 * MEGABYTE) as process:
        await all_at_the_first_attempt(process, 100)


async def test_large_inputs_are_claimed_by_bytes(url: str) -> None:
    """One claim for all slots would need more memory than there is."""
    random.seed(7)
    await drain(url, random.randbytes(MEGABYTE // 2).hex()[:-64])


@pytest.mark.quick
async def test_large_inputs_that_postgres_compresses_are_claimed_by_bytes(dsn: str) -> None:
    """Their stored size is a hundredth of their length."""
    await drain(dsn, "x" * (MEGABYTE - 64))


async def test_large_outputs_are_written_by_bytes(url: str) -> None:
    """There are 250 MB of outputs at once. One statement for all of them would need three times as much besides."""
    async with AsyncClient.from_url(url, JOB_TYPES) as client:
        await client.start_chains([NewChain(produce, MEGABYTE - 64)] * 250)
    async with bounded_worker(url, megabytes=4000, concurrency=250, together=250) as process:
        await all_at_the_first_attempt(process, 250)
        assert process.peak_megabytes < 620
