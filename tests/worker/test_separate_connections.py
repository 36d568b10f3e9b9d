"""A worker that has all its connections in use keeps nobody from starting chains, and does not lose its leases."""

from __future__ import annotations

import asyncio
import threading

import pytest

from queuert import Attempt, Client, InProcessWorker, NewChain, Outcome
from queuert.notify.in_process import InProcessNotify
from queuert.observability.events import AttemptAborted, LeasesRenewed
from tests.support.harness import PostgresHarness
from tests.support.job_types import JOB_TYPES, WATCHED, number, text
from tests.support.waiting import WAIT, Gate, in_time


async def test_stuck_handlers_do_not_keep_the_client_from_starting(harness: PostgresHarness) -> None:
    """More handlers than connections, each in a transaction: the client starts and looks, leases are renewed."""
    inside = Gate()

    async def stuck(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as completion:
            await inside.pass_through(attempt)
            return completion.finish(attempt.input)

    harness.handles(number, stuck, lease=WATCHED)
    harness.handles(text, lambda attempt: attempt.input)
    worker = InProcessWorker(harness.client, harness.processors, concurrency=8, max_connections=2)
    harness.workers.append(worker)
    await worker.start()
    chains = await harness.client.start_chains([NewChain(number, at) for at in range(8)])
    # Two are inside, and have all there is of the worker's pool; the others queue for it.
    for _ in range(2):
        await inside.next()
    harness.log.forget()
    for _ in range(20):
        started = await in_time(harness.client.start_chain(text, "x"))
        assert (await in_time(harness.client.get_chain(started.id))).id == started.id
    assert len(await in_time(harness.client.list_chains(job_types=[text]))) == 20
    # Those of the six that wait for a connection; the two inside hold their jobs by their transactions.
    await harness.log.wait_for(LeasesRenewed, count=6, lost=0, times=3)
    assert harness.log.of(AttemptAborted) == []
    inside.open()
    async with asyncio.timeout(WAIT):
        assert sorted([await chain.result() for chain in chains]) == list(range(8))


@pytest.mark.quick
async def test_stuck_threads_do_not_keep_a_plain_client_from_starting(harness: PostgresHarness) -> None:
    """The same with plain functions in threads, and a synchronous client that the worker shares."""
    arrived, gate = threading.Semaphore(0), threading.Event()

    def stuck(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.complete() as completion:
            arrived.release()
            assert gate.wait(WAIT)
            return completion.finish(attempt.input)

    harness.handles(number, stuck, lease=WATCHED)
    with Client(harness.state, JOB_TYPES, notify=InProcessNotify(), observability=harness.log) as client:
        worker = InProcessWorker(client, harness.processors, concurrency=4, max_connections=2)
        harness.workers.append(worker)
        await worker.start()
        chains = await asyncio.to_thread(client.start_chains, [NewChain(number, at) for at in range(4)])
        for _ in range(4):
            assert await asyncio.to_thread(arrived.acquire, timeout=WAIT)
        for _ in range(20):
            await in_time(asyncio.to_thread(client.start_chain, text, "x"))
        assert harness.log.of(AttemptAborted) == []
        gate.set()
        assert [await in_time(asyncio.to_thread(chain.result)) for chain in chains] == list(range(4))
        await worker.stop()
