"""Workers of types whose keys take turns, or have an order."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

import pytest

from queuert import Attempt, Client, InProcessWorker, NewChain, Outcome, Processors, RetryPolicy
from queuert.errors import CapabilityMissingError, ConfigurationError
from queuert.limits import Limits, Rate
from queuert.policies import LeasePolicy
from queuert.state import Capability
from queuert.state.redis import RedisState
from queuert.testing.conformance.builders import ask, expire
from tests.support.harness import PostgresHarness
from tests.support.job_types import JOB_TYPES, number, text
from tests.support.waiting import WAIT, in_time

_AT_ONCE = RetryPolicy(initial_delay=0.001, max_delay=0.01, jitter=0.0)


async def test_a_small_key_does_not_wait_for_a_large_one(harness: PostgresHarness) -> None:
    """Its job is among the first ones that a worker of one slot runs."""
    processors = Processors(JOB_TYPES)
    seen: list[int] = []

    @processors.handles(number, limits=Limits(fair=True))
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        seen.append(attempt.input)
        return attempt.input

    await harness.client.start_chains([NewChain(number, 1, limit_key="large") for _ in range(200)])
    small = await harness.client.start_chain(number, 2, limit_key="small")
    async with harness.worker(processors, concurrency=1):
        await small.result(timeout=WAIT)
    assert Counter(seen[: seen.index(2) + 1])[1] < 20


async def test_chains_of_a_key_run_in_order_under_failures(harness: PostgresHarness) -> None:
    """Three workers, attempts that raise, and chains that continue with another type: never two of a key at once."""
    processors = Processors(JOB_TYPES, retry=_AT_ONCE)
    running: Counter[int] = Counter()
    ended: dict[int, list[int]] = defaultdict(list)
    crowded: list[int] = []

    @processors.handles(number, limits=Limits(ordered=True))
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        key, place = divmod(attempt.input, 100)
        running[key] += 1
        if running[key] > 1:
            crowded.append(attempt.input)
        await asyncio.sleep(0)
        running[key] -= 1
        if place % 3 == 0 and attempt.number == 1:
            raise RuntimeError("once")
        ended[key].append(place)
        return attempt.input

    chains = [
        chain
        for place in range(12)
        for chain in await harness.client.start_chains(
            [NewChain(number, key * 100 + place, limit_key=f"key{key}") for key in range(4)]
        )
    ]
    workers = [harness.worker(processors, name=f"w{n}", concurrency=3) for n in range(3)]
    await asyncio.gather(*(worker.start() for worker in workers))
    await harness.client.wait(chains, timeout=WAIT)
    await asyncio.gather(*(worker.stop() for worker in workers))
    assert not crowded
    assert dict(ended) == {key: list(range(12)) for key in range(4)}


async def test_a_lost_lease_holds_its_key(harness: PostgresHarness) -> None:
    """The next chain begins when the job of a dead worker was reaped and has run again."""
    processors = Processors(JOB_TYPES, retry=_AT_ONCE, lease=LeasePolicy(seconds=1.0))
    seen: list[tuple[int, int]] = []

    @processors.handles(number, limits=Limits(ordered=True))
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        seen.append((attempt.input, attempt.number))
        return attempt.input

    first, second = [await harness.client.start_chain(number, n, limit_key="key") for n in (1, 2)]
    store = await harness.client._open_store()
    [dead] = await store.claim(ask("number", limit=1))
    await expire(store, dead)
    async with harness.worker(processors, concurrency=2):
        await in_time(harness.client.wait([first, second], timeout=WAIT))
    assert seen == [(1, 2), (2, 1)]


async def test_prefetch_goes_on_where_keys_only_take_turns(harness: PostgresHarness) -> None:
    """Nothing holds back a job of such a type, so a worker claims ahead as it does without limits."""
    processors = Processors(JOB_TYPES)

    @processors.handles(text, limits=Limits(fair=True))
    async def handler(attempt: Attempt[str, str]) -> Outcome[str]:
        return attempt.input

    async with harness.worker(processors) as worker:
        assert worker._runtime is not None
        assert worker._runtime.prefetch._enabled


def test_a_store_without_an_order_is_refused() -> None:
    """When the worker is made, with what to do."""
    processors = Processors(JOB_TYPES)

    @processors.handles(number, limits=Limits(ordered=True))
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.input

    client = Client(RedisState("redis://localhost:1"), JOB_TYPES)
    with pytest.raises(CapabilityMissingError, match="number needs Postgres or SQLite") as caught:
        InProcessWorker(client, processors)
    assert caught.value.capability == Capability.ORDERED_KEYS


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"fair": 1}, "fair must be True or False, got 1"),
        ({"ordered": None}, "ordered must be True or False, got None"),
        ({"ordered": True, "per_key": 2}, "leave out per_key"),
        ({"fair": False}, "needs at least one of"),
    ],
)
def test_limits_that_make_no_sense(values: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        Limits(**values)  # type: ignore[arg-type]


def test_what_can_hold_back_a_job() -> None:
    assert not Limits(fair=True).bounded
    assert Limits(ordered=True).bounded
    assert Limits(fair=True, rate=Rate(1)).bounded
