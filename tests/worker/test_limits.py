"""Workers under limits: never too many at once, and woken when a slot is free."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import pytest

from queuert import Attempt, NewChain, Outcome, Processors, RetryPolicy
from queuert.limits import Limits, Rate
from queuert.notify import InProcessNotify
from queuert.observability.events import AttemptStarted, JobReaped
from queuert.policies import LeasePolicy
from queuert.worker.claimer import _max_empty_claim_delay
from queuert.worker.processors import Processor
from tests.support.harness import PostgresHarness
from tests.support.job_types import JOB_TYPES, number, text
from tests.support.waiting import WAIT, Gate, in_time, until


@dataclass(frozen=True, slots=True)
class _Limited(Processor):
    limits: Limits | None = None


class Limiting(Processors):
    """Processors of which some types have limits."""

    def __init__(self, **limits: Limits) -> None:
        super().__init__(JOB_TYPES, retry=RetryPolicy(initial_delay=0.0, jitter=0.0))
        self._limits = limits

    def __iter__(self) -> Iterator[Processor]:
        names = [one.name for one in fields(Processor) if one.name != "limits"]
        for one in super().__iter__():
            values = {name: getattr(one, name) for name in names}
            yield _Limited(**values, limits=self._limits.get(one.job_type.name))


def counting(processors: Processors, most: Counter[Any]) -> None:
    """Handle numbers, and count how many of them run at once, of all and of each.

    The first ones wait for each other: slowly as they may begin, two of them run at once.
    """
    running: Counter[Any] = Counter()
    two = asyncio.Event()

    @processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        for name in ("all", attempt.input):
            running[name] += 1
            most[name] = max(most[name], running[name])
        if running["all"] == 2:
            two.set()
        await in_time(two.wait())
        await asyncio.sleep(0.002)
        running.subtract(["all", attempt.input])
        return attempt.input


async def run_all(harness: PostgresHarness, processors: Processors, *, workers: int, jobs: int, keys: int) -> None:
    """Run jobs of so many keys, which are their inputs, with several workers of many slots."""
    new = [NewChain(number, one % keys, limit_key=f"key{one % keys}") for one in range(jobs)]
    chains = await harness.client.start_chains(new)
    started = [harness.worker(processors, name=f"w{n}", concurrency=5, poll_interval=3600.0) for n in range(workers)]
    await asyncio.gather(*(worker.start() for worker in started))
    await harness.client.wait(chains, timeout=3 * WAIT)


@pytest.mark.quick
async def test_concurrency_over_workers(harness: PostgresHarness) -> None:
    """Three workers of five slots run no more of a type at once than its concurrency, and all jobs end."""
    most: Counter[Any] = Counter()
    processors = Limiting(number=Limits(concurrency=2))
    counting(processors, most)
    await run_all(harness, processors, workers=3, jobs=60, keys=3)
    assert most["all"] == 2


async def test_keys_over_workers(harness: PostgresHarness) -> None:
    """No key runs twice at once, several keys do."""
    most: Counter[Any] = Counter()
    processors = Limiting(number=Limits(per_key=1))
    counting(processors, most)
    await run_all(harness, processors, workers=3, jobs=60, keys=4)
    assert [most[key] for key in range(4)] == [1] * 4
    assert most["all"] > 1


async def test_other_types_are_not_held_up(harness: PostgresHarness) -> None:
    """While a type is at its limit, the worker's other slots run other types, and no job of it."""
    gate = Gate()
    processors = Limiting(number=Limits(concurrency=1))

    @processors.handles(number)
    async def held(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    @processors.handles(text)
    async def free(attempt: Attempt[str, str]) -> Outcome[str]:
        return attempt.input

    numbers = await harness.client.start_chains([NewChain(number, one) for one in range(3)])
    async with harness.worker(processors, concurrency=5):
        await gate.next()
        texts = await harness.client.start_chains([NewChain(text, "x") for _ in range(20)])
        await harness.client.wait(texts, timeout=WAIT)
        assert gate.arrived.empty()
        assert len(harness.log.of(AttemptStarted, type="number")) == 1
        gate.open()
        await harness.client.wait(numbers, timeout=WAIT)


@pytest.mark.parametrize("finish", ["completed", "retried"])
async def test_the_end_of_an_attempt_tells_other_workers(harness: PostgresHarness, finish: str) -> None:
    """When an attempt of a limited type ends, a notification of its type goes out, whether or not a job became due by
    it."""
    reported: list[frozenset[str] | None] = []
    harness.client.notify = notify = InProcessNotify()
    notify.subscribe("jobs", lambda notification: reported.append(notification.keys))  # type: ignore[arg-type]
    gate = Gate()
    processors = Limiting(number=Limits(concurrency=1))

    @processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.retry(after=3600.0) if finish == "retried" else attempt.input

    async with harness.worker(processors) as worker:
        await harness.client.start_chain(number, 1)
        await gate.next()
        reported.clear()
        gate.open()
        await harness.log.wait_for(AttemptStarted)
        await until(lambda: not worker.running, "the attempt has ended")
    assert frozenset({"number"}) in reported


@pytest.mark.parametrize("attempts", [1, 25], ids=["failed for good", "tried much later"])
async def test_the_reaper_tells_other_workers(harness: PostgresHarness, attempts: int) -> None:
    """When a dead worker's job is taken back, its slot is known to be free, whether or not there is another attempt."""
    reported: list[frozenset[str] | None] = []
    processors = Limiting(number=Limits(concurrency=1))
    policy = RetryPolicy(max_attempts=attempts, initial_delay=3600.0, max_delay=3600.0)
    processors.handles(number, retry=policy)(lambda attempt: attempt.input)
    # The reaper looks as often as the shortest lease asks for; that of the second job must not run out.
    processors.handles(text, lease=LeasePolicy(seconds=1.0))(lambda attempt: attempt.input)
    harness.client.notify = notify = InProcessNotify()
    await harness.client.start_chain(number, 1)
    harness.rows(
        "update queuert.job set status = 'running', attempt = 1, lease_token = gen_random_uuid(),"
        " lease_expires_at = now() - interval '1 s', holder = 'dead'"
    )
    second = await harness.client.start_chain(number, 2)
    notify.subscribe("jobs", lambda notification: reported.append(notification.keys))  # type: ignore[arg-type]
    async with harness.worker(processors):
        await harness.log.wait_for(JobReaped)
        assert frozenset({"number"}) in reported
        assert await second.result(WAIT) == 2


async def test_a_rate_over_workers(harness: PostgresHarness) -> None:
    """Two workers begin no more attempts in a window than the rate, retries among them, and go on after it."""
    processors = Limiting(number=Limits(rate=Rate(3, per=0.5)))
    begun = []

    @processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        begun.append(harness.one("select started_at from queuert.job where id = %s", attempt.job_id))
        return attempt.retry() if attempt.number == 1 else attempt.input

    chains = await harness.client.start_chains([NewChain(number, one, limit_key="a") for one in range(4)])
    for name in ("one", "two"):
        await harness.worker(processors, name=name, concurrency=4, poll_interval=3600.0).start()
    await harness.client.wait(chains, timeout=WAIT)
    assert len(begun) == 8
    spans = [(later - earlier).total_seconds() for earlier, later in pairwise(sorted(begun)[::3])]
    assert len(spans) == 2
    assert all(span > 0.5 for span in spans)
    # Starts that have left the window are deleted.
    assert harness.one("select count(*) from queuert.limit_start") < 8


async def test_held_back_jobs_do_not_make_the_worker_spin(harness: PostgresHarness) -> None:
    """While ready jobs are held back, claims come at growing intervals."""
    gate = Gate()
    processors = Limiting(number=Limits(concurrency=1))

    @processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    chains = await harness.client.start_chains([NewChain(number, one) for one in range(2)])
    async with harness.worker(processors, concurrency=5) as worker:
        await gate.next()
        assert worker._runtime is not None
        claimer = worker._runtime.claimer
        await until(lambda: claimer._empty_claims >= 4, "some claims were without result")
        gate.open()
        await harness.client.wait(chains, timeout=WAIT)


def test_pauses_in_contention() -> None:
    """A claim without result is followed by another within a second, or the time in which a rate lets one start
    through."""
    assert _max_empty_claim_delay([]) == 1.0
    assert _max_empty_claim_delay([Limits(concurrency=1), Limits(rate=Rate(5, per=60))]) == 1.0
    assert _max_empty_claim_delay([Limits(per_key=1), Limits(rate=Rate(5, per=1))]) == 0.2
    assert _max_empty_claim_delay([Limits(rate=Rate(1000, per=1))]) == 0.05
