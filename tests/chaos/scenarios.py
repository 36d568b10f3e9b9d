"""Directed scenarios: each forces one situation that a broken queue gets wrong, and asserts what a right one does.

They need no luck: whoever must be late is held until the others are where they should be.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, LiteralString

import psycopg

from queuert import (
    AsyncClient,
    Attempt,
    InProcessWorker,
    JobType,
    JobTypes,
    Outcome,
    PostgresState,
    Processors,
    RetryPolicy,
)
from queuert.deduplication import Deduplicate
from queuert.jobs import JobStatus
from queuert.notify import InProcessNotify
from queuert.observability.events import AttemptCompleted, JobsClaimed, ListenerLost, ListenerRestored, StoreCallFailed
from queuert.policies import LeasePolicy
from queuert.state import AsyncStore
from queuert.state.types import ClaimedJob, ReapedJob, ReapRequest
from queuert.testing.conformance.builders import claim_one, complete, job, read, start
from queuert.testing.events import EventLog
from queuert.testing.fault_proxy import FaultProxy

TIMEOUT: ContextVar[float] = ContextVar("timeout", default=20.0)
"""Seconds: an upper bound for what takes a lease or two. Where it will not come, less of it is enough."""

SHORT = LeasePolicy(seconds=1.0, renew_every=0.3)
"""For those that wait for its end."""
LONG = LeasePolicy(seconds=20.0, renew_every=0.3)
"""For those that look at its renewals: a slow machine must not cost it."""
AT_ONCE = RetryPolicy(initial_delay=0.0, jitter=0.0)
work = JobType("work", input=int, output=int)
JOB_TYPES = JobTypes(work)

Scenario = Callable[["Stage"], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Register a scenario under its name."""
    SCENARIOS[function.__name__] = function
    return function


class Stage:
    """A database, and the state, perhaps a broken one, that a scenario is played on."""

    def __init__(self, make: Callable[..., PostgresState], dsn: str) -> None:
        self._make = make
        self.dsn = dsn
        self.log = EventLog()
        self.gate = asyncio.Event()
        self.begun: list[int] = []
        """The attempts that have begun."""

    def state(self, dsn: str | None = None, **settings: Any) -> PostgresState:
        """A state."""
        return self._make(dsn or self.dsn, **settings)

    @asynccontextmanager
    async def store(self, dsn: str | None = None) -> AsyncIterator[AsyncStore]:
        """An open store."""
        store = self.state(dsn).async_store(max_connections=8)
        await store.open()
        try:
            yield store
        finally:
            await store.aclose()

    def client(self, state: PostgresState | None = None, **settings: Any) -> AsyncClient:
        """A client."""
        return AsyncClient(state or self.state(), JOB_TYPES, observability=self.log, **settings)

    def worker(self, client: AsyncClient, lease: LeasePolicy = LONG, **settings: Any) -> InProcessWorker:
        """A worker whose handler waits for the gate, if its input says so, and completes."""
        processors = Processors(JOB_TYPES, lease=lease, retry=AT_ONCE)

        @processors.handles(work)
        async def handle(attempt: Attempt[int, int]) -> Outcome[int]:
            self.begun.append(attempt.number)
            if attempt.input:
                await self.gate.wait()
            async with attempt.complete() as tx:
                return tx.finish(attempt.number)

        return InProcessWorker(client, processors, **settings)

    async def one(self, query: LiteralString, *values: Any) -> Any:
        """The only value of a query."""
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            row = await (await connection.execute(query, values or None)).fetchone()
            assert row is not None
            return row[0]

    async def waits_for_a_lock(self) -> bool:
        """Whether some session waits for another's lock."""
        query: LiteralString = """SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'"""
        return bool(await self.one(query))


async def until(condition: Callable[[], Awaitable[Any]], what: str, gate: asyncio.Event | None = None) -> None:
    """Wait for what only a look can tell. Then, also if it does not come, whoever waits at the gate goes on."""
    try:
        async with asyncio.timeout(TIMEOUT.get()):
            while not await condition():  # noqa: ASYNC110  (nobody tells)
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not so within {TIMEOUT.get():g} s: {what}") from None
    finally:
        if gate is not None:
            gate.set()


async def within(awaitable: Awaitable[Any], what: str) -> Any:
    """Wait for it."""
    try:
        async with asyncio.timeout(TIMEOUT.get()):
            return await awaitable
    except TimeoutError:
        raise AssertionError(f"not within {TIMEOUT.get():g} s: {what}") from None


async def reaped(store: AsyncStore, policy: RetryPolicy | None = None) -> ReapedJob:
    """Reap the one lease that is about to expire."""
    found: list[ReapedJob] = []

    async def reap() -> bool:
        found.extend((await store.reap(ReapRequest({"work": policy or AT_ONCE}))).reaped)
        return bool(found)

    await until(reap, "the lease has expired and was reaped")
    return found[0]


async def _next_attempt(store: AsyncStore, holder: str) -> tuple[ClaimedJob, ClaimedJob]:
    """A job that was claimed, reaped, and claimed again by this holder."""
    await start(store, job())
    first = await claim_one(store, lease=0.1, holder="first" if holder != "same" else "same")
    await reaped(store)
    return first, await claim_one(store, holder=holder)


@scenario
async def late_while_the_next_runs(stage: Stage) -> None:
    """Attempt one ends while attempt two runs: it is refused."""
    async with stage.store() as store:
        first, second = await _next_attempt(store, "second")
        [late] = await store.finish([complete(first, '"first"')])
        assert late.lost is not None, "attempt one ended the job of attempt two"
        [done] = await store.finish([complete(second, '"second"')])
        assert done.written


@scenario
async def same_worker_again(stage: Stage) -> None:
    """The same, where both attempts are one worker's."""
    async with stage.store() as store:
        first, _ = await _next_attempt(store, "same")
        [late] = await store.finish([complete(first, '"first"')])
        assert late.lost is not None, "attempt one ended the job of attempt two"


@scenario
async def leases_are_dated_when_they_are_written(stage: Stage) -> None:
    """A lease lasts as long from the moment of the claim as was asked for, not from the beginning of its statement."""
    async with stage.store() as store:
        await start(store, job())
        claimed = await claim_one(store, lease=60.0)
        query: LiteralString = "SELECT lease_expires_at - started_at >= interval '60 s' FROM queuert.job WHERE id = %s"
        assert await stage.one(query, claimed.id), "the lease is shorter than was asked for"


@scenario
async def claims_pass_over_claims(stage: Stage) -> None:
    """A claim that comes while another one is about to commit gets nothing of it."""
    async with stage.store() as store:
        [id] = await start(store, job())
        async with await psycopg.AsyncConnection.connect(stage.dsn) as other:
            await other.execute(
                """UPDATE queuert.job SET status = 'running', attempt = attempt + 1, started_at = clock_timestamp(),
                       lease_expires_at = clock_timestamp() + interval '60 s', lease_token = gen_random_uuid(),
                       holder = 'other' WHERE id = %s""",
                [id],
            )
            claim = asyncio.create_task(claim_or_none(store))

            async def settled() -> bool:
                return claim.done() or await stage.waits_for_a_lock()

            await until(settled, "the claim is done, or waits")
            await other.commit()
        assert await within(claim, "the claim") is None, "a job under a live lease was claimed again"
        assert (await read(store, id)).attempt == 1


async def claim_or_none(store: AsyncStore) -> ClaimedJob | None:
    """The best due job, if there is one."""
    try:
        return await claim_one(store)
    except ValueError:
        return None


@scenario
async def one_chain_for_a_key(stage: Stage) -> None:
    """Of two starts of one key, the second waits for the first one's commit, and gets its chain."""
    async with stage.client() as client, await psycopg.AsyncConnection.connect(stage.dsn) as callers:
        key = Deduplicate("key")
        first = await client.start_chain(work, 0, deduplication=key, connection=callers)
        begun = asyncio.create_task(client.start_chain(work, 0, deduplication=key))

        async def settled() -> bool:
            return begun.done() or await stage.waits_for_a_lock()

        await until(settled, "the second start is done, or waits")
        await callers.commit()
        second = await within(begun, "the second start")
        assert second.id == first.id, "one key has two chains"


@scenario
async def blockers_that_close_in_overlap(stage: Stage) -> None:
    """Two blockers of a job end in transactions neither of which sees the other: one of them releases the job."""
    async with stage.store() as store:
        blockers = await start(store, job(), job())
        [waiting] = await start(store, job("waiting", blockers=blockers))
        first, second = await claim_one(store), await claim_one(store)
        async with store.transaction(second) as late:
            async with store.transaction(first) as early:
                await early.finish(complete(first))
                finish = asyncio.create_task(late.finish(complete(second)))

                async def settled() -> bool:
                    return finish.done() or await stage.waits_for_a_lock()

                await until(settled, "the second finish is written, or waits")
            await within(finish, "the second finish")
        assert (await read(store, waiting)).status is JobStatus.READY, "a job waits for chains that have closed"


@scenario
async def reaper_and_completion(stage: Stage) -> None:
    """A reaper that comes while a late completion is about to commit leaves the job alone."""
    async with stage.store() as store:
        await start(store, job())
        claimed = await claim_one(store, lease=0.1)
        async with store.transaction(claimed) as tx:
            await tx.finish(complete(claimed))
            await until(over_by_clock(stage), "the lease is over")
            reap = asyncio.create_task(store.reap(ReapRequest({"work": AT_ONCE})))

            async def settled() -> bool:
                return reap.done() or await stage.waits_for_a_lock()

            await until(settled, "the reaper is done, or waits")
        assert not (await within(reap, "the reaper")).reaped, "a completed job was reaped"
        assert (await read(store, claimed.id)).status is JobStatus.COMPLETED


def over_by_clock(stage: Stage) -> Callable[[], Awaitable[bool]]:
    """Whether the only lease, as others see it, is over."""

    async def over() -> bool:
        return bool(
            await stage.one("SELECT coalesce(max(lease_expires_at) < clock_timestamp(), true) FROM queuert.job")
        )

    return over


@scenario
async def deaths_are_counted(stage: Stage) -> None:
    """A worker's death costs an attempt: a job of one attempt has failed."""
    async with stage.store() as store:
        await start(store, job())
        claimed = await claim_one(store, lease=0.1)
        assert claimed.attempt == 1, "the claim was not counted"
        done = await reaped(store, RetryPolicy(max_attempts=1))
        assert done.status is JobStatus.FAILED


@scenario
async def starts_roll_back_with_the_caller(stage: Stage) -> None:
    """A start on the caller's connection is gone when the caller rolls back."""
    async with stage.client() as client, await psycopg.AsyncConnection.connect(stage.dsn) as callers:
        await client.start_chain(work, 0, connection=callers)
        await callers.rollback()
        assert await stage.one("SELECT count(*) FROM queuert.job") == 0, "the start outlived its transaction"


@scenario
async def who_follows_the_log_misses_nothing(stage: Stage) -> None:
    """A cursor is behind what was handed on, and never behind an event that is yet to be committed."""
    handed_on: list[str] = []
    cursor: str | None = None
    async with stage.client() as client, await psycopg.AsyncConnection.connect(stage.dsn) as callers:
        early = await client.start_chain(work, 0, connection=callers)
        later = await client.start_chain(work, 0)

        async def follow() -> bool:
            nonlocal cursor
            page = await client.list_events(oldest_first=True, cursor=cursor)
            handed_on.extend(event.job_id for event in page)
            cursor = page.items[-1].cursor if page.items else cursor
            return later.id in handed_on

        await follow()
        await callers.commit()
        await until(follow, "the event of a later transaction is handed on")
    assert early.id in handed_on, "a reader was led past an event that nobody had handed on"


# --- workers ----------------------------------------------------------------------------------------------------------


@scenario
async def jobs_are_found_without_notifications(stage: Stage) -> None:
    """A worker that hears nothing, and has looked for jobs when it had a place left, finds the next when it polls."""
    deaf = stage.client(notify=InProcessNotify())
    settings: dict[str, Any] = {"poll_interval": 0.2, "concurrency": 8}
    async with deaf, stage.client(notify=InProcessNotify()) as other, stage.worker(deaf, **settings):
        for _ in range(3):
            chain = await other.start_chain(work, 0)
            # Told by the worker: whoever waits for the result hears nothing either.
            await stage.log.wait_for(AttemptCompleted, job_id=chain.id, timeout=TIMEOUT.get())
        # Each of them may have been found by a look at what is due that came just after its start. Now nothing is due.
        stage.log.forget()
        await stage.log.wait_for(JobsClaimed, times=3, count=0, timeout=TIMEOUT.get())


@scenario
async def notifications_come_back(stage: Stage) -> None:
    """A listener that lost its connection hears of jobs again; nobody polls."""
    with FaultProxy.before(stage.dsn) as proxy:
        listening = stage.client(stage.state(listen_dsn=proxy.address_in(stage.dsn)))
        async with listening, stage.client() as other, stage.worker(listening, poll_interval=3600.0):
            early = await other.start_chain(work, 0)
            assert await early.result(TIMEOUT.get()) == 1

            async def listens() -> bool:
                return listening.notify.healthy

            await until(listens, "there is a connection to lose")
            proxy.reset()
            await stage.log.wait_for(ListenerLost)
            await stage.log.wait_for(ListenerRestored)
            for _ in range(2):
                later = await other.start_chain(work, 0)
                assert await later.result(TIMEOUT.get()) == 1


@scenario
async def a_lease_outlives_a_blip(stage: Stage) -> None:
    """Connections that break once cost a renewal, not the lease."""
    with FaultProxy.before(stage.dsn) as proxy:
        # Not prepared, each renewal has its text, and no other statement has this of it.
        state = stage.state(proxy.address_in(stage.dsn), listen_dsn=stage.dsn, prepare_threshold=None)
        cut = stage.client(state)
        async with cut, stage.client() as other, stage.worker(cut):
            chain = await other.start_chain(work, 1)
            await until(_begun(stage), "the handler runs")
            proxy.lose_answer(b"free.seconds * interval")
            await stage.log.wait_for(StoreCallFailed, operation="renew_leases")
            ends: LiteralString = "SELECT max(lease_expires_at)::text FROM queuert.job"
            seen = {await stage.one(ends)}

            async def renewed() -> bool:
                # The server may carry out the renewal whose answer was lost after this look at it: that is one more.
                seen.add(await stage.one(ends))
                return len(seen) > 2 or stage.begun != [1]

            await until(renewed, "the lease is renewed after the blip", stage.gate)
            assert await chain.result(TIMEOUT.get()) == 1, "the lease was lost"


@scenario
async def leases_are_kept_while_stopping(stage: Stage) -> None:
    """A worker that is asked to stop keeps the leases of what still runs."""
    async with stage.client() as client, stage.client() as looking:
        worker = stage.worker(client, shutdown_timeout=30.0)
        await worker.start()
        chain = await looking.start_chain(work, 1)
        await until(_begun(stage), "the handler runs")
        stopping = asyncio.create_task(worker.stop())
        async with stage.worker(looking):
            ends: LiteralString = "SELECT lease_expires_at::text FROM queuert.job"
            seen = {await stage.one(ends)}

            async def renewed() -> bool:
                seen.add(await stage.one(ends))
                return len(seen) > 5 or stage.begun != [1]

            await until(renewed, "the lease is renewed some times while the worker stops", stage.gate)
            assert await chain.result(TIMEOUT.get()) == 1, "another worker took the job of one that was stopping"
            await stopping


def _begun(stage: Stage) -> Callable[[], Awaitable[bool]]:
    async def begun() -> bool:
        return bool(stage.begun)

    return begun


@scenario
async def a_commit_that_never_arrived(stage: Stage) -> None:
    """A worker does not tell of a completion whose COMMIT was lost on its way."""
    with FaultProxy.before(stage.dsn) as proxy:
        cut = stage.client(stage.state(proxy.address_in(stage.dsn), listen_dsn=stage.dsn))
        async with cut, stage.client() as other, stage.worker(cut, SHORT):
            chain = await other.start_chain(work, 1)
            await until(_begun(stage), "the handler runs")
            proxy.lose_request(b"COMMIT")
            stage.gate.set()
            # Of the first attempt, unless that lost its lease to a slow machine before it came so far.
            last = await chain.result(TIMEOUT.get())
            assert proxy.fired.is_set()
            await stage.log.wait_for(AttemptCompleted, job_id=chain.id, attempt=last)
            reported = [event.attempt for event in stage.log.of(AttemptCompleted, job_id=chain.id)]
            assert reported == [last], f"attempts {reported} were told to have completed the job, and {last} did"
