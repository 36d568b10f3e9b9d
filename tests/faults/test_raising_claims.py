"""A claim that raises after its commit releases its jobs, whatever it raised, on every store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from queuert import AsyncChain, Attempt, JobStatus, JobType, JobTypes, NewChain, Outcome, Processors
from queuert.errors import StateError, StateUnavailableError
from queuert.ids import new_token
from queuert.observability.adapter import Observers
from queuert.observability.events import JobReaped, StoreCallFailed
from queuert.policies import Backoff, LeasePolicy
from queuert.state.adapter import StateAdapter
from queuert.state.async_store import AsyncStore
from queuert.state.types import ClaimedJob, ClaimRequest, Lease, ReleasedClaim
from queuert.testing.events import EventLog
from queuert.urls import state_from_url
from queuert.worker.leases import HeldLease, LeaseRegistry
from queuert.worker.releases import ReleaseQueue
from queuert.worker.runner import AttemptRunner
from tests.support.harness import Harness
from tests.support.waiting import WAIT, until

pytestmark = pytest.mark.fault

JOBS = 40
LONG = LeasePolicy(seconds=600.0, renew_every=100.0)
"""A job that is not released stays with the worker until the test ends."""

work = JobType("work", input=int, output=int)
JOB_TYPES = JobTypes(work)

ERRORS = pytest.mark.parametrize(
    "error",
    [MemoryError, StateError, StateUnavailableError, KeyError, asyncio.CancelledError],
    ids=lambda error: error.__name__,
)


class Around:
    """A store whose answers raise."""

    def __init__(self, store: AsyncStore, trouble: Trouble) -> None:
        self._store = store
        self._trouble = trouble

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Claim; the answer may raise."""
        # The loop that continues bulk operations claims too, whenever it likes.
        if work.name in request.leases:
            self._trouble.limits.append(request.limit)
        jobs = await self._store.claim(request)
        if jobs and self._trouble.claims:
            self._trouble.claims -= 1
            raise self._trouble.error()
        return jobs

    async def release_claim(self, request: ClaimRequest) -> ReleasedClaim:
        """Release a claim; this may raise."""
        if self._trouble.releases:
            self._trouble.releases -= 1
            raise StateError("out of memory")
        return await self._store.release_claim(request)


class Trouble:
    """How often claims raise, and what; how often their release then fails; and what was requested."""

    def __init__(self) -> None:
        self.claims = 0
        self.releases = 0
        self.error: type[BaseException] = MemoryError
        self.limits: list[int] = []


class ClaimHarness(Harness):
    """A client of one store, and workers whose claims may raise."""

    def __init__(self, state: StateAdapter, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(state, job_types=JOB_TYPES, poll_interval=0.05)
        self.trouble = Trouble()
        self.processors = Processors(JOB_TYPES, lease=LONG)
        self.handles(work, _echo)
        kind: Any = type(state)
        made = kind.async_store
        monkeypatch.setattr(kind, "async_store", lambda state, **named: Around(made(state, **named), self.trouble))

    async def start(self, count: int = JOBS) -> list[AsyncChain[int]]:
        """Start so many chains."""
        return await self.client.start_chains([NewChain(work, one) for one in range(count)])

    async def all_done(self, chains: Sequence[AsyncChain[int]]) -> None:
        """Each job is completed by one counted attempt, and none has lost a lease."""
        closed = await self.client.wait(chains, timeout=WAIT)
        assert {one.status for one in closed} == {"completed"}
        for chain in chains:
            job = await self.client.get_job(chain.id)
            assert (job.status, job.attempt - job.uncounted, job.lease_expirations) == (JobStatus.COMPLETED, 1, 0)
        assert self.log.of(JobReaped) == []


async def _echo(attempt: Attempt[int, int]) -> Outcome[int]:
    return attempt.input


@pytest.fixture(params=["postgres", "redis", "sqlite"])
async def harness(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ClaimHarness]:
    """Yield each store."""
    fixtures = {"postgres": "dsn", "redis": "redis_url"}
    name = fixtures.get(request.param)
    url = request.getfixturevalue(name) if name else f"sqlite:///{tmp_path / 'jobs.db'}"
    harness = ClaimHarness(state_from_url(url), monkeypatch)
    yield harness
    await harness.close()


@ERRORS
async def test_a_claim_that_raises_after_its_commit_gives_back_what_it_took(
    harness: ClaimHarness, error: type[BaseException]
) -> None:
    """No attempt is counted, and no job fails."""
    harness.trouble.claims, harness.trouble.error = 3, error
    chains = await harness.start()
    async with harness.worker(concurrency=JOBS):
        await harness.all_done(chains)
    assert harness.trouble.claims == 0


async def test_a_claim_that_raises_is_given_back_though_that_fails_at_first(harness: ClaimHarness) -> None:
    """The worker repeats the release until the store has answered."""
    harness.trouble.claims, harness.trouble.releases = 1, 3
    chains = await harness.start()
    async with harness.worker(concurrency=JOBS):
        await harness.all_done(chains)
    assert [event.operation for event in harness.log.of(StoreCallFailed)] == ["release"] * 3


async def test_the_next_claim_after_one_that_raised_asks_for_half_and_grows_again(harness: ClaimHarness) -> None:
    harness.trouble.claims = 3
    chains = await harness.start(4 * JOBS)
    async with harness.worker(concurrency=JOBS):
        await harness.all_done(chains)
    assert harness.trouble.limits[:4] == [JOBS, JOBS // 2, JOBS // 4, JOBS // 8]
    assert max(harness.trouble.limits[4:]) >= JOBS


async def test_a_lost_connection_does_not_halve_the_next_claim(harness: ClaimHarness) -> None:
    harness.trouble.claims, harness.trouble.error = 1, StateUnavailableError
    chains = await harness.start()
    async with harness.worker(concurrency=JOBS):
        await harness.all_done(chains)
    assert harness.trouble.limits[:2] == [JOBS, JOBS]


async def test_what_cannot_be_given_back_does_not_keep_the_worker_from_claiming(harness: ClaimHarness) -> None:
    """The store refuses to release one claim, however often the worker tries."""
    harness.trouble.claims, harness.trouble.releases = 1, 1_000_000
    lost = await harness.start(1)
    async with harness.worker(concurrency=JOBS):
        await until(lambda: harness.log.of(StoreCallFailed), "it is tried to give it back")
        await harness.all_done(await harness.start())
        harness.trouble.releases = 0
        await harness.all_done(lost)


class Refusing:
    """A store that refuses to release one job's lease, or does not answer at all."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.released: list[str] = []
        self.requested = 0
        self._hangs = hangs

    async def release(self, leases: Sequence[Lease]) -> int:
        """Refuse all leases if the bad one is among them."""
        self.requested += 1
        # As every store it lets others run: a task that tries again at once would else keep them from it for good.
        await asyncio.sleep(0)
        if self._hangs:
            await asyncio.Event().wait()
        if any(one.job_id == "bad" for one in leases):
            raise StateError("no")
        self.released += [one.job_id for one in leases]
        return len(leases)


def returns_of(store: Refusing, *names: str) -> ReleaseQueue:
    """The leases to be released, which last for an hour."""
    returns = ReleaseQueue(
        cast(AsyncStore, store), worker="w", observers=Observers([EventLog()]), on_released=lambda types: None
    )
    for name in names:
        returns.put("quick", Lease(name, new_token()), time.monotonic() + 3_600.0)
    return returns


async def test_one_lease_that_is_refused_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuert.worker.releases._BACKOFF", Backoff(initial_delay=0.0, max_delay=0.0))
    store = Refusing()
    returns = returns_of(store, "a", "bad", "b", "c", "d")
    while len(store.released) < 4:
        await returns.release_due()
    assert sorted(store.released) == ["a", "b", "c", "d"]
    assert returns


async def test_a_release_that_hangs_holds_up_a_claim_once_and_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuert.worker.releases.RELEASE_WAIT", 0.0)
    store = Refusing(hangs=True)
    returns = returns_of(store, "a")
    for _ in range(3):
        await returns.release_due()
    assert store.requested == 1
    await returns.aclose()


async def test_jobs_for_which_there_is_no_memory_are_given_back(
    harness: ClaimHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store answered the claim, but the worker could not use the answer."""
    made, failures = LeaseRegistry.add, [MemoryError(), MemoryError()]

    def add(book: LeaseRegistry, granted: Sequence[HeldLease]) -> None:
        if failures:
            raise failures.pop()
        made(book, granted)

    monkeypatch.setattr(LeaseRegistry, "add", add)
    chains = await harness.start()
    async with harness.worker(concurrency=JOBS):
        await harness.all_done(chains)
    assert failures == []


async def test_jobs_that_no_place_can_begin_with_are_given_back(
    harness: ClaimHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no memory for the attempt of one job, and none to let the others wait."""
    made, failures = AttemptRunner.run, [MemoryError(), MemoryError()]

    def run(runner: AttemptRunner, task: asyncio.Task[None]) -> Coroutine[Any, Any, bool]:
        if failures:
            raise failures.pop()
        return made(runner, task)

    monkeypatch.setattr(AttemptRunner, "run", run)
    chains = await harness.start()
    async with harness.worker(concurrency=JOBS):
        await harness.all_done(chains)
    assert failures == []
