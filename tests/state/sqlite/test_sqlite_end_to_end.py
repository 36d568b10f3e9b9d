"""Clients and workers sync and async on SQLite, in a file and in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from queuert import (
    AsyncClient,
    Attempt,
    Client,
    InProcessWorker,
    JobStatus,
    NewChain,
    Outcome,
    Processors,
    RetryPolicy,
    after,
)
from queuert.errors import JobFailedError
from queuert.observability.events import AttemptStarted
from queuert.state import Capability
from queuert.state.sqlite import SQLiteState
from queuert.testing.events import EventLog
from tests.state.sqlite.application import AT_ONCE, JOB_TYPES, child, first, last, parent, single, threaded
from tests.support.waiting import WAIT

SLOWLY = 3600.0
"""Seconds between two polls: who goes on before was told by a notification."""


def handlers() -> Processors:
    """As those of the application, without effects; with leases that outlast any test."""
    made = Processors(JOB_TYPES, retry=AT_ONCE)

    async def double(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.input * 2

    def double_in_a_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.input * 2

    async def go_on(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.continue_with(last, attempt.input + 1)

    def wait_for_others(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.blockers:
            return sum(attempt.outputs_of(child))
        with attempt.complete() as tx:
            return tx.finish(attempt.wait_for(*(NewChain(child, number) for number in range(attempt.input))))

    made.handles(single)(double)
    made.handles(last)(double)
    made.handles(child)(double)
    made.handles(threaded)(double_in_a_thread)
    made.handles(first)(go_on)
    made.handles(parent)(wait_for_others)
    return made


@pytest.mark.parametrize("mode", ["async", "sync"])
async def test_chains_of_every_kind(state: SQLiteState, mode: str) -> None:
    """Continuations, children, blockers, threads: told of by notifications, with no poll in reach."""
    async with AsyncClient(state, JOB_TYPES) as client:
        given = client if mode == "async" else Client(state, JOB_TYPES)
        worker = InProcessWorker(given, handlers(), concurrency=4, poll_interval=SLOWLY)
        async with worker:
            chains = [await client.start_chain(type, 3) for type in (single, threaded, first, parent)]
            blocked = await client.start_chain(single, 5, blockers=chains)
            assert [await chain.result(WAIT) for chain in (*chains, blocked)] == [6, 6, 8, 6, 10]
        if isinstance(given, Client):
            given.close()


def test_a_synchronous_client(state: SQLiteState) -> None:
    """It starts, waits, reads and operates while an asynchronous worker of another client does the work."""
    with Client(state, JOB_TYPES) as client:
        started = [client.start_chain(single, number) for number in range(20)]

        async def work() -> None:
            async with (
                AsyncClient(state, JOB_TYPES) as others,
                InProcessWorker(others, handlers(), concurrency=2, poll_interval=SLOWLY),
            ):
                results = await asyncio.to_thread(client.wait, started, timeout=WAIT)
                assert len(results) == 20

        asyncio.run(work())
        assert [client.get_chain(one.id, single).result(0) for one in started] == [number * 2 for number in range(20)]
        assert {(one.status, one.count) for one in client.count_jobs()} == {(JobStatus.COMPLETED, 20)}


async def test_failures_and_updates(state: SQLiteState) -> None:
    """A failed chain is retried from outside, a scheduled one triggered, another one cancelled, and all deleted."""
    processors = Processors(JOB_TYPES, retry=RetryPolicy(max_attempts=1))
    fails = True

    @processors.handles(single)
    async def fail_once(attempt: Attempt[int, int]) -> Outcome[int]:
        if fails:
            raise ValueError("not yet")
        return attempt.input

    async with AsyncClient(state, JOB_TYPES) as client, InProcessWorker(client, processors, poll_interval=SLOWLY):
        failing = await client.start_chain(single, 1)
        with pytest.raises(JobFailedError, match="not yet"):
            await failing.result(WAIT)
        fails = False
        await client.retry_chain(failing.id)
        assert await failing.result(WAIT) == 1
        later = await client.start_chain(single, 2, run_at=after(hours=1))
        await client.trigger_job(later.id)
        assert await later.result(WAIT) == 2
        never = await client.start_chain(single, 3, run_at=after(hours=1))
        await client.cancel_chain(never.id)
        deleted = await client.delete_chains([failing.id, later.id, never.id])
        assert len(deleted) == 3
        assert await client.count_jobs() == []


async def test_a_running_job_is_reported_that_it_was_cancelled(state: SQLiteState) -> None:
    """By a notification, and at once; its finish is refused."""
    processors = Processors(JOB_TYPES, retry=AT_ONCE)
    reported = asyncio.Event()
    log = EventLog()

    @processors.handles(single)
    async def wait(attempt: Attempt[int, int]) -> Outcome[int]:
        try:
            await asyncio.Event().wait()
        finally:
            reported.set()
        return 0

    async with (
        AsyncClient(state, JOB_TYPES, observability=log) as client,
        InProcessWorker(client, processors, poll_interval=SLOWLY),
    ):
        chain = await client.start_chain(single, 1)
        await log.wait_for(AttemptStarted, job_id=chain.id)
        await client.cancel_chain(chain.id, reason="enough")
        async with asyncio.timeout(WAIT):
            await reported.wait()


def test_both_modes_share_the_data_in_memory() -> None:
    state = SQLiteState()
    first_client, second_client = Client(state, JOB_TYPES), Client(state, JOB_TYPES)
    chain = first_client.start_chain(single, 1)
    first_client.close()
    assert second_client.get_chain(chain.id).id == chain.id

    async def look() -> str:
        async with AsyncClient(state, JOB_TYPES) as client:
            return (await client.get_chain(chain.id)).id

    assert asyncio.run(look()) == chain.id
    second_client.close()
    assert SQLiteState().capabilities == {Capability.EVENTS, Capability.ORDERED_KEYS}
    state.close()


def test_what_a_file_is_capable_of(path: Path) -> None:
    assert SQLiteState(path).capabilities == {
        Capability.USER_TRANSACTIONS,
        Capability.EVENTS,
        Capability.MULTI_PROCESS,
        Capability.ORDERED_KEYS,
    }
