"""Phases in a worker: what is refused, in what order they are written, and phases in a process of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from queuert import AsyncClient, Attempt, JobStatus, JobType, JobTypes, PostgresState, RetryPolicy
from queuert.event_log import JobEvent
from queuert.observability.events import PhaseCompleted, PhaseStarted
from queuert.state.sqlite import SQLiteState
from queuert.state.sqlite.store import SQLiteStore
from queuert.state.types import Renewal
from queuert.worker.leases import HeldLease, LeaseRegistry
from tests.support.harness import Harness, PostgresHarness
from tests.support.job_types import AT_ONCE
from tests.support.waiting import START, WAIT
from tests.worker import staged

work = JobType("work", input=None, output=int, phases=("a", "b", "c"))


@pytest.fixture
async def local() -> AsyncIterator[Harness]:
    """In memory: the store does not matter."""
    harness = Harness(SQLiteState(), job_types=JobTypes(work))
    yield harness
    await harness.close()


async def run(harness: Harness, handler: Any) -> tuple[JobStatus, str]:
    harness.handles(work, handler, retry=AT_ONCE)
    async with harness.worker():
        chain = await (await harness.client.start_chain(work, None)).wait(WAIT)
    job = await harness.job(chain.id)
    return job.status, str(job.last_error)


def nothing() -> None:
    """Do nothing."""


async def test_phases_that_contradict_the_job_type_fail_the_job_at_once(local: Harness) -> None:
    async def handler(attempt: Attempt[None, int]) -> int:
        await attempt.phase("b", nothing)
        await attempt.phase("a", nothing)
        return 1

    status, error = await run(local, handler)
    assert (status, "'a' after 'b'" in error) == (JobStatus.FAILED, True)


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_the_first_attempt_gets_a_result_as_later_ones_do(dsn: str, mode: str) -> None:
    """Postgres stores the keys in another order."""
    orders: list[list[str]] = []

    def unordered() -> dict[str, int]:
        return {"bb": 1, "a": 2, "ccc": 3}

    async def in_loop(attempt: Attempt[None, int]) -> int:
        orders.append(list(await attempt.phase("a", unordered)))
        return attempt.number if attempt.number == 2 else int("once more")

    def in_thread(attempt: Attempt[None, int]) -> int:
        orders.append(list(attempt.phase_sync("a", unordered)))
        return attempt.number if attempt.number == 2 else int("once more")

    harness = Harness(PostgresState(dsn), job_types=JobTypes(work))
    assert (await run(harness, in_loop if mode == "coroutine" else in_thread))[0] is JobStatus.COMPLETED
    await harness.close()
    assert orders == [orders[0]] * 2


async def test_a_phase_is_no_step_of_the_same_name(local: Harness) -> None:
    async def handler(attempt: Attempt[None, int]) -> int:
        if attempt.number == 1:
            await attempt.phase("a", nothing)
            raise ValueError("again")
        await attempt.step("a", nothing)
        return 1

    status, error = await run(local, handler)
    assert (status, "'a (a phase)'" in error, "'a (a function)'" in error) == (JobStatus.FAILED, True, True)


async def test_a_phase_that_raised_may_be_run_again_in_the_same_attempt(local: Harness) -> None:
    calls: list[int] = []

    def flaky() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError
        return len(calls)

    async def handler(attempt: Attempt[None, int]) -> int:
        await attempt.step("before", nothing)
        for _ in range(2):
            try:
                return await attempt.phase("a", flaky)
            except ConnectionError:
                continue
        raise AssertionError

    assert (await run(local, handler))[0] is JobStatus.COMPLETED
    assert len(local.log.of(PhaseStarted)) == 2
    assert len(local.log.of(PhaseCompleted)) == 1


async def test_another_program_that_renamed_the_phase_that_failed_goes_on(local: Harness) -> None:
    """Of a phase that was not completed nothing is recorded that a newer program would have to fit."""
    older = JobType("work", input=None, output=int, phases=("a", "old"))
    newer = JobType("work", input=None, output=int, phases=("a", "new", "last"))

    async def handler(attempt: Attempt[None, int]) -> int:
        await attempt.phase("a", nothing)
        await attempt.phase("old", lambda: 1 // 0, returns=int)
        return 1

    async def renamed(attempt: Attempt[None, int]) -> int:
        await attempt.phase("a", nothing)
        await attempt.phase("new", nothing)
        return 2

    assert await ran(local, older, handler) == [("a", "completed"), ("old", "failed")]
    assert await ran(local, newer, renamed) == [("a", "completed"), ("new", "completed"), ("last", "skipped")]


async def ran(local: Harness, job_type: JobType[None, int], handler: Any) -> list[tuple[str, str]]:
    """Start the chain with a program that has these phases, or retry it; return them."""
    harness = Harness(local.state, job_types=JobTypes(job_type))
    harness.handles(job_type, handler, retry=RetryPolicy(max_attempts=1))
    chain = await harness.client.start_chain(job_type, None, id="one", attach=True)
    if chain.deduplicated:
        await harness.client.retry_chain(chain)
    async with harness.worker():
        await chain.wait(WAIT)
    phases = await chain.phases()
    await harness.stop()
    return [(one.name, one.status.value) for one in phases]


async def test_progress_of_a_phase_that_has_ended_is_not_written_after_its_end(
    local: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the renewal that writes it is under way when the phase ends, and takes long."""
    writing, waited_for = threading.Event(), threading.Event()
    renew, withdraw = SQLiteStore.renew, LeaseRegistry.withdraw_progress

    def slow_renew(store: SQLiteStore, renewals: list[Renewal]) -> list[bool]:
        if any(one.progress is not None for one in renewals) and not writing.is_set():
            writing.set()
            assert waited_for.wait(WAIT)
        return renew(store, renewals)

    def noted_withdraw(leases: LeaseRegistry, held: HeldLease) -> bool:
        being_written = withdraw(leases, held)
        if being_written:
            waited_for.set()
        return being_written

    monkeypatch.setattr(SQLiteStore, "renew", slow_renew)
    monkeypatch.setattr(LeaseRegistry, "withdraw_progress", noted_withdraw)

    async def recorded(attempt: Attempt[None, int]) -> int:
        attempt.record_progress(fraction=0.5)
        assert await asyncio.to_thread(writing.wait, WAIT)
        return 1

    async def handler(attempt: Attempt[None, int]) -> int:
        await attempt.phase("a", recorded, attempt)
        return await attempt.phase("b", lambda: 2, returns=int)

    assert (await run(local, handler))[0] is JobStatus.COMPLETED
    overall = [one.progress.fraction for one in await logged(local.client) if one.progress is not None]
    assert overall == pytest.approx([0.0, 1 / 6, 1 / 3, 1 / 3, 2 / 3])


async def logged(client: AsyncClient) -> list[JobEvent]:
    return list(await client.list_events(limit=1_000, oldest_first=True))


@pytest.mark.timeout(2 * START)
async def test_phases_in_a_process_that_dies(harness: PostgresHarness) -> None:
    parts = Harness(harness.state, job_types=JobTypes(staged.PARTS))
    parts.handles(staged.PARTS, staged.in_phases, executor="process", retry=AT_ONCE)
    async with parts.worker():
        chain = await parts.client.start_chain(staged.PARTS, None)
        assert await chain.result(START) == [1, 2]
    assert [(one.name, one.status.value, one.attempt) for one in await chain.phases()] == [
        ("first", "completed", 1),
        ("second", "completed", 2),
    ]
    assert [(one.phase, one.attempt) for one in parts.log.of(PhaseStarted)] == [
        ("first", 1),
        ("second", 1),
        ("second", 2),
    ]
    overall = [one.progress.fraction for one in await logged(parts.client) if one.progress is not None]
    assert overall == sorted(overall)  # type: ignore[type-var]
    await parts.close()
