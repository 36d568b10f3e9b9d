"""Nothing waits for ever: neither behind what is better, nor behind the backlog of another type."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuert import Attempt, Limits, NewChain, RetryPolicy
from queuert.observability.events import JobsClaimed, JobsReleased
from queuert.state.types import ClaimedJob, ClaimRequest, NewJob
from queuert.worker.claimer import ROUND, ClaimOrder
from tests.support.harness import Harness
from tests.support.job_types import number, text
from tests.support.waiting import WAIT, Gate, Turnstile, in_time, until

pytestmark = pytest.mark.timeout(240)

BACKLOG = 300
PLENTY = 1_500
"""So many better jobs do not run before a worse one does, with some to spare."""

ODD = -1


@pytest.mark.parametrize(
    ("settings", "odd"),
    [
        ({}, {}),
        ({"retry": RetryPolicy(initial_delay=0.05, jitter=0.0)}, {}),
        ({"limits": Limits(concurrency=1)}, {}),
        ({}, {"priority": -7}),
    ],
    ids=["failed", "failed, with a pause", "failed within limits", "of low priority"],
)
async def test_a_job_runs_though_there_are_always_better_ones(
    harness: Harness, settings: dict[str, Any], odd: dict[str, Any]
) -> None:
    """Also one that has failed: G16, it makes way for those that have not, but not for ever."""
    ran, done, failures = 0, asyncio.Event(), 0 if odd else 1

    async def handler(attempt: Attempt[int, int]) -> int:
        nonlocal ran, failures
        if attempt.input != ODD:
            ran += 1
            if ran >= PLENTY:
                done.set()
            elif not done.is_set():
                # For each that goes there comes another.
                await harness.client.start_chain(number, attempt.input)
            return attempt.input
        if failures:
            failures -= 1
            raise ValueError("fails once")
        done.set()
        return attempt.input

    harness.handles(number, handler, **settings)
    await harness.client.start_chain(number, ODD, **odd)
    await harness.client.start_chains([NewChain(number, 1) for _ in range(BACKLOG)])
    async with harness.worker(concurrency=1) as worker:
        await done.wait()
        await worker.stop(shutdown_timeout=WAIT)
    assert ran < PLENTY


async def test_types_of_one_worker_share_it(harness: Harness) -> None:
    """However many jobs of another type were there before."""
    ran, done = 0, asyncio.Event()

    async def busy(attempt: Attempt[int, int]) -> int:
        nonlocal ran
        ran += not done.is_set()
        return attempt.input

    async def late(attempt: Attempt[str, str]) -> str:
        done.set()
        return attempt.input

    harness.handles(number, busy)
    harness.handles(text, late)
    await harness.client.start_chains([NewChain(number, 1) for _ in range(5_000)])
    await harness.client.start_chain(text, "late")
    async with harness.worker(concurrency=1) as worker:
        await done.wait()
        await worker.stop(shutdown_timeout=WAIT)
    # What is claimed ahead runs in the order of its age: 2,000 at most.
    assert ran < 2_500


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("limits", [{}, {"a": Limits(per_key=5)}], ids=["unlimited", "one is limited"])
async def test_few_claims_come_to_each_type_and_rank(harness: Harness, limit: int, limits: dict[str, Limits]) -> None:
    """Counted: a type waits for as many claims as there are others, a worse rank for a round for each of its like."""
    store = harness.state.async_store(max_connections=1)
    await store.open()
    try:
        order = ClaimOrder({"a": 60.0, "b": 60.0, "c": 60.0}, limits, holder="me")

        async def claims_until(type: str, priority: int) -> int:
            for count in range(1, 100):
                request = order.request(limit, 1_000_000)
                jobs = await store.claim(request)
                order.on_claimed(request, jobs)
                if (type, priority) in [(job.type, job.priority) for job in jobs]:
                    return count
            raise AssertionError("it was not claimed")

        await store.start_jobs([NewJob(f"a{number}", "a", "1") for number in range(1_000)])
        await store.start_jobs([NewJob("b", "b", "1")])
        assert await claims_until("b", 0) <= 2
        await store.start_jobs([NewJob("c", "c", "1"), NewJob("b0", "b", "1")])
        assert await claims_until("c", 0) <= 3
        low = [(-priority, number) for priority in (1, 5, 9) for number in range(4)]
        await store.start_jobs(
            [NewJob(f"low{priority}{number}", "a", "1", priority=priority) for priority, number in low]
        )
        assert await claims_until("a", -1) <= ROUND
        assert await claims_until("a", -5) <= ROUND
        assert await claims_until("a", -9) <= ROUND
        # There are more of it: the round begins anew behind the last rank.
        assert await claims_until("a", -1) <= 2 * ROUND
    finally:
        await store.aclose()


def _claimed(harness: Harness) -> int:
    return sum(event.count for event in harness.log.of(JobsClaimed))


@pytest.mark.parametrize("behind", [3, 300], ids=["a few", "many"])
@pytest.mark.parametrize("stops", [False, True], ids=["long", "stopping"])
async def test_jobs_behind_a_long_one_are_run_by_an_idle_worker(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, behind: int, stops: bool
) -> None:
    """A worker claimed them since its handlers were quick. It releases them after a second, or when it stops, and the
    other one hears of it: it polls in an hour."""
    # Quick handlers, also on a machine that halts in between.
    monkeypatch.setattr("queuert.worker.prefetch.HandlerDurationEstimate.jobs_ahead", lambda self, slots: 1_000)
    monkeypatch.setattr("queuert.worker.prefetch._MAX_WAIT", 3600.0)
    if stops:
        monkeypatch.setattr("queuert.worker.prefetch.STALE_SECONDS", 3600.0)
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        if attempt.input == ODD:
            await gate.pass_through(attempt)
        return attempt.input

    harness.handles(number, handler)
    quick = [NewChain(number, 1) for _ in range(200)]
    later = [NewChain(number, 2, priority=-2) for _ in range(behind)]
    chains = await harness.client.start_chains([*quick, NewChain(number, ODD, priority=-1), *later])
    busy = harness.worker(concurrency=1, poll_interval=3600.0)
    await busy.start()
    await gate.next()
    try:
        await until(lambda: _claimed(harness) > len(quick) + 1, "it has claimed what is behind the long one")
        await harness.worker(poll_interval=3600.0, name="idle").start()
        stop = asyncio.ensure_future(busy.stop(shutdown_timeout=WAIT)) if stops else None
        await harness.client.wait([chain for chain in chains if chain is not chains[len(quick)]], timeout=WAIT)
        assert harness.log.of(JobsReleased)
    finally:
        gate.open()
    if stop is not None:
        await stop


async def test_jobs_behind_a_long_one_are_run_elsewhere_while_a_claim_is_not_answered(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may take half a minute for the answer; the second does not wait for it."""
    monkeypatch.setattr("queuert.worker.prefetch.HandlerDurationEstimate.jobs_ahead", lambda self, slots: 2)
    gate, sent, answer = Turnstile(), asyncio.Event(), asyncio.Event()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.input

    harness.handles(number, handler)
    chains = await harness.client.start_chains([NewChain(number, index) for index in range(3)])
    busy = harness.worker(concurrency=1, poll_interval=3600.0)
    await busy.start()
    await gate.next()
    runtime = busy._runtime
    assert runtime is not None
    claim = runtime.store.claim

    async def claim_late(request: ClaimRequest) -> list[ClaimedJob]:
        sent.set()
        await answer.wait()
        return await claim(request)

    monkeypatch.setattr(runtime.store, "claim", claim_late)
    # The second begins, and one waits: the next claim is sent.
    gate.turn()
    await in_time(sent.wait())
    await harness.worker(concurrency=3, poll_interval=3600.0, name="idle").start()
    try:
        await gate.next()
        last = await gate.next()
        assert last.worker.startswith("idle")
    finally:
        gate.turn(3)
        answer.set()
    await harness.client.wait(chains, timeout=WAIT)
