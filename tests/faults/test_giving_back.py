"""A stopping worker releases the jobs that it will not run, although connections break: no lease is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import psycopg
import pytest

from queuert import NewChain, PostgresState
from queuert.errors import StateUnavailableError
from queuert.ids import new_token
from queuert.observability.adapter import Observers
from queuert.observability.events import JobReaped, StoreCallFailed, WorkerStopped, WorkerStopping
from queuert.policies import LeasePolicy
from queuert.state.async_store import AsyncStore
from queuert.state.postgres.async_store import AsyncPostgresStore
from queuert.state.types import ClaimRequest, Lease, ReleasedClaim
from queuert.testing.events import EventLog
from queuert.testing.fault_proxy import FaultProxy
from queuert.worker.releases import ReleaseQueue
from tests.faults.application import Plan, patient, quick
from tests.faults.harness import FaultHarness
from tests.support.waiting import WAIT, until

pytestmark = pytest.mark.fault

RELEASE = b"Releases jobs that were claimed"
RELEASE_CLAIM = b"Releases all jobs of one claim"
LONG = LeasePolicy(seconds=120.0, renew_every=30.0)
"""No lease that is left behind is reaped before the test has checked."""


def through(proxy: FaultProxy, harness: FaultHarness) -> PostgresState:
    """All statements are sent with their text, so that tests can recognize them."""
    return PostgresState(proxy.address_in(harness.dsn), listen_dsn=harness.dsn, prepare_threshold=None)


def running(harness: FaultHarness) -> int:
    return int(harness.witness.one("select count(*) from queuert.job where status = 'running'"))


@pytest.mark.parametrize("arrives", [True, False], ids=["answer is lost", "request is lost"])
async def test_a_claim_that_was_under_way(harness: FaultHarness, proxy: FaultProxy, arrives: bool) -> None:
    """The claim waits for a lock; the connection breaks in the release of the jobs that it finally takes."""
    chain = await harness.client.start_chain(patient, Plan())
    worker = harness.worker(state=through(proxy, harness), lease=LONG, shutdown_timeout=WAIT)
    with psycopg.connect(harness.dsn) as stranger:
        stranger.execute("lock table queuert.job in exclusive mode")
        await worker.start()
        await until(lambda: harness.witness.one("select count(*) from pg_locks where not granted"), "the claim waits")
        (proxy.lose_answer if arrives else proxy.lose_request)(RELEASE_CLAIM)
        stopping = asyncio.create_task(worker.stop())
        await harness.log.wait_for(WorkerStopping)
        stranger.rollback()
    await stopping
    assert proxy.fired.is_set()
    assert running(harness) == 0
    assert harness.witness.job(chain.id) == ("ready", 0, 0, 0)
    assert [event.operation for event in harness.log.of(StoreCallFailed)] == ["release"]


@pytest.mark.parametrize("arrives", [True, False], ids=["answer is lost", "request is lost"])
async def test_what_was_claimed_ahead(
    harness: FaultHarness, proxy: FaultProxy, arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler in the one place ends when all the others are back."""
    monkeypatch.setattr("queuert.worker.prefetch.HandlerDurationEstimate.jobs_ahead", lambda self, places: 10)
    # The stop alone releases the waiting jobs, and not an earlier release on a slow machine.
    monkeypatch.setattr("queuert.worker.prefetch.STALE_SECONDS", 3600.0)
    await harness.client.start_chains([NewChain(patient, Plan(before=[1])) for _ in range(6)])
    worker = harness.worker(state=through(proxy, harness), lease=LONG, shutdown_timeout=WAIT)
    await worker.start()
    # One handler has begun, so the worker has the answer to its claim: of a claim under way a stop releases all jobs.
    await until(lambda: harness.witness.one("select count(*) from step"), "the first one has begun")
    assert running(harness) > 1
    (proxy.lose_answer if arrives else proxy.lose_request)(RELEASE)
    stopping = asyncio.create_task(worker.stop())
    await until(lambda: running(harness) == 1, "those that waited are back")
    # The test can see that before the proxy has the answer.
    await until(proxy.fired.is_set, "the connection is cut")
    await worker.stop()
    await stopping
    assert running(harness) == 0
    assert harness.witness.one("select max(attempt - uncounted) from queuert.job") == 0
    assert len(harness.log.of(WorkerStopped)) == 1


async def test_a_claim_that_goes_on_without_its_client(
    harness: FaultHarness, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks while the server executes the claim. The first query finds nothing: it has not
    committed."""
    looks = Looks(monkeypatch)
    with psycopg.connect(harness.dsn, autocommit=True) as stranger:
        stranger.execute(
            """create function hold_up() returns trigger language plpgsql as
               $$ begin perform pg_advisory_xact_lock(7); return new; end $$"""
        )
        stranger.execute(
            """create trigger hold_up before update on queuert.job for each row
               when (old.status = 'ready' and new.status = 'running') execute function hold_up()"""
        )
        stranger.execute("select pg_advisory_lock(7)")
        chain = await harness.client.start_chain(patient, Plan(before=[1]))
        worker = harness.worker(state=through(proxy, harness), lease=LONG)
        await worker.start()
        await until(lambda: held_up(harness), "the claim is under way")
        proxy.reset()
        await until(lambda: looks.found == [0], "the worker has looked for what it took")
        stranger.execute("select pg_advisory_unlock(7)")
        await until(lambda: running(harness) == 1, "the claim has committed")
        looks.late()
        # A notification wakes the claimer for its second try.
        await harness.client.start_chain(quick, 1)
        await until(lambda: harness.witness.has_step(chain.id, "began", 1), "the job begins")
    assert harness.log.of(JobReaped) == []
    harness.witness.open("before:1")
    assert await chain.result(WAIT) == 1


def held_up(harness: FaultHarness) -> bool:
    return bool(harness.witness.one("select count(*) from pg_locks where locktype = 'advisory' and not granted"))


class Looks:
    """Yield how many jobs each query for a lost claim has found. The second query waits for the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[int] = []
        self._monkeypatch = monkeypatch
        self._pause(3600.0)
        look = AsyncPostgresStore.release_claim

        async def noted(store: AsyncPostgresStore, request: ClaimRequest) -> ReleasedClaim:
            result = await look(store, request)
            self.found.append(result.released)
            return result

        monkeypatch.setattr(AsyncPostgresStore, "release_claim", noted)

    def late(self) -> None:
        """It is time for the second one."""
        self._pause(0.0)

    def _pause(self, seconds: float) -> None:
        self._monkeypatch.setattr("queuert.worker.releases.RECHECK_AFTER", seconds)


class Away:
    """A store that does not answer any more."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()

    async def release(self, leases: Sequence[Lease]) -> int:
        """Never answer."""
        self.requested.set()
        raise StateUnavailableError("away")


def queue_of(store: AsyncStore, types_released: Callable[[Iterable[str]], None] = lambda types: None) -> ReleaseQueue:
    """The releases of a worker, which call a function with the types of what it released."""
    return ReleaseQueue(store, worker="w", observers=Observers([EventLog()]), on_released=types_released)


async def test_a_hurry_ends_it() -> None:
    """While the store is unavailable the worker repeats the release, but a second signal ends that."""
    store, hurry = Away(), asyncio.Event()
    returns = queue_of(cast(AsyncStore, store))
    returns.put("quick", Lease("a", new_token()), time.monotonic() + 3_600.0)
    settling = asyncio.create_task(returns.release_all(hurry))
    for _ in range(2):
        await store.requested.wait()
        store.requested.clear()
    hurry.set()
    await settling


class Locked:
    """A store in which another transaction has locked the jobs of a claim, for so many calls."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    async def release_claim(self, request: ClaimRequest) -> ReleasedClaim:
        """Release nothing while they are locked."""
        self._left -= 1
        return ReleasedClaim(0, 1) if self._left >= 0 else ReleasedClaim(1, 0)


@pytest.mark.parametrize(("calls", "released"), [(1, True), (1_000_000, False)], ids=["for a moment", "all the time"])
async def test_a_hurry_waits_a_moment_for_locked_jobs(
    monkeypatch: pytest.MonkeyPatch, calls: int, released: bool
) -> None:
    """Another worker's claim locks jobs that it does not take: it was about to claim them when they were taken."""
    monkeypatch.setattr("queuert.worker.releases.RECHECK_AFTER", 0.001)
    log, hurry = EventLog(), asyncio.Event()
    returns = ReleaseQueue(
        cast(AsyncStore, Locked(calls)), worker="w", observers=Observers([log]), on_released=lambda types: None
    )
    hurry.set()
    returns.put_claim(ClaimRequest({"quick": 60.0}, 2, "w", new_token()), answered=True)
    if not released:
        monkeypatch.setattr("queuert.worker.releases.HURRY_SECONDS", 0.01)
    await returns.release_all(hurry)
    assert bool(returns) is not released
    assert [event.operation for event in log.of(StoreCallFailed)] == ([] if released else ["stop_claiming"])


async def test_no_longer_than_the_leases_last() -> None:
    returns = queue_of(cast(AsyncStore, Away()))
    returns.put("quick", Lease("a", new_token()), time.monotonic())
    await returns.release_all(asyncio.Event())
    assert not returns


async def test_a_job_that_is_locked_is_given_back_when_it_is_free(harness: FaultHarness) -> None:
    """Meanwhile the locked row delays neither the other releases nor the worker's next claim."""
    await harness.client.start_chains([NewChain(quick, n, id=f"q{n}") for n in range(2)])
    store = PostgresState(harness.dsn).async_store()
    await store.open()
    try:
        claim = ClaimRequest({"quick": 60.0}, 2, "w", new_token())
        jobs = await store.claim(claim)
        types_released: list[set[str]] = []
        returns = queue_of(store, lambda types: types_released.append(set(types)))
        with psycopg.connect(harness.dsn) as stranger:
            stranger.execute("select from queuert.job where id = 'q0' for update")
            for job in jobs:
                returns.put(job.type, job.lease, time.monotonic() + 60.0)
            async with asyncio.timeout(WAIT):
                await returns.release_due()
            assert harness.witness.job("q1") == ("ready", 0, 0, 0)
            assert returns
            assert types_released == [{"quick"}]
            async with asyncio.timeout(WAIT):
                assert await store.release_claim(claim) == (0, 1)
        async with asyncio.timeout(WAIT):
            await returns.release_all(asyncio.Event())
        assert harness.witness.job("q0") == ("ready", 0, 0, 0)
        assert types_released == 2 * [{"quick"}], "also of what is released late"
    finally:
        await store.aclose()


async def test_a_claim_in_doubt_is_looked_for_until_its_locked_jobs_are_free(harness: FaultHarness) -> None:
    """The first query releases the unlocked jobs, and the others do not wait until their lease expires."""
    await harness.client.start_chains([NewChain(quick, n, id=f"q{n}") for n in range(2)])
    store = PostgresState(harness.dsn).async_store()
    await store.open()
    try:
        claim = ClaimRequest({"quick": 60.0}, 2, "w", new_token())
        await store.claim(claim)
        returns = queue_of(store)
        with psycopg.connect(harness.dsn) as stranger:
            stranger.execute("select from queuert.job where id = 'q0' for update")
            returns.put_claim(claim, answered=False)
            async with asyncio.timeout(WAIT):
                await returns.release_due()
            assert harness.witness.job("q1") == ("ready", 0, 0, 0)
            assert returns
        async with asyncio.timeout(WAIT):
            await returns.release_all(asyncio.Event())
        assert harness.witness.job("q0") == ("ready", 0, 0, 0)
    finally:
        await store.aclose()
