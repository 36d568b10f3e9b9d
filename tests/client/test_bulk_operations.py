"""Bulk operations: durable changes to all chains of a filter, on each store."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest

from queuert import AsyncClient, Client, JobType, JobTypes, NewChain
from queuert.bulk_operations import BATCH, BulkAction, BulkPreview, BulkRequest, PreviewGroup
from queuert.client import async_bulk_runner, async_cascades, renewing, sync_bulk_runner
from queuert.client.async_bulk_runner import _AsyncBatch
from queuert.client.async_cascades import Cascade
from queuert.errors import (
    ChainNotFoundError,
    ConfigurationError,
    InvalidIdentifierError,
    JobIdConflictError,
    JobTypeMismatchError,
    LeaseLostError,
)
from queuert.ids import new_token
from queuert.job_types import BULK_OPERATION_TYPE
from queuert.jobs import AbortReason, ChainRecord, ChainStatus, JobError, JobStatus
from queuert.limits import TypeTraits
from queuert.notify.adapter import Topic
from queuert.notify.in_process import InProcessNotify
from queuert.observability.events import ChainClosed, ChainRetried
from queuert.state import AsyncStore, StateAdapter
from queuert.state.paging import MAX_PAGE, ChainFilter, Page, PageRequest
from queuert.state.postgres import PostgresState
from queuert.state.sqlite import SQLiteState
from queuert.state.types import ClaimedJob, ClaimRequest, Finish, FinishKind, FinishResult, NewJob, ReapRequest, Renewal
from queuert.testing.conformance.builders import AT_ONCE, ask, complete, expire, fail, run_out, wait
from queuert.testing.events import EventLog
from queuert.webhooks.endpoints import DELIVERY_TYPE
from queuert.workers import WorkerHeartbeat
from tests.support.waiting import WAIT, in_time

work = JobType("work", input=int, output=int)
other = JobType("other", input=int, output=int)
JOB_TYPES = JobTypes(work, other)


async def _connected(dsn: str) -> psycopg.AsyncConnection[Any]:
    return await psycopg.AsyncConnection.connect(dsn)


class Queue:
    """A client, and the store behind it."""

    def __init__(self, client: AsyncClient, store: AsyncStore) -> None:
        self.client = client
        self.store = store

    async def failed(self, count: int, type: JobType[int, int] = work) -> list[str]:
        """Start chains whose jobs then fail."""
        chains = await self.client.start_chains([NewChain(type, number) for number in range(count)])
        await self.fail_all(type.name)
        return [chain.id for chain in chains]

    async def fail_all(self, type: str) -> None:
        while claimed := await self.store.claim(ClaimRequest({type: 60.0}, 500, "me", new_token())):
            await self.store.finish([fail(job) for job in claimed])

    async def statuses(self, ids: list[str]) -> list[ChainStatus]:
        return [chain.status for chain in await self.store.get_chains(ids) if chain is not None]


@pytest.fixture(params=["postgres", "sqlite", "redis"])
def state(request: pytest.FixtureRequest) -> StateAdapter:
    if request.param == "postgres":
        return PostgresState(request.getfixturevalue("dsn"))
    if request.param == "redis":
        from queuert.state.redis import RedisState

        return RedisState(request.getfixturevalue("redis_url"))
    return SQLiteState()


@pytest.fixture
async def queue(state: StateAdapter) -> AsyncIterator[Queue]:
    store = state.async_store(max_connections=1)
    await store.open()
    async with AsyncClient(state, JOB_TYPES, notify=InProcessNotify()) as client:
        yield Queue(client, store)
    await store.aclose()


async def test_retry_by_filter_takes_the_failed_chains_of_the_type(queue: Queue) -> None:
    failed, others = await queue.failed(BATCH + 7), await queue.failed(2, other)
    preview = await queue.client.preview_bulk_operation("retry", job_types=[work])
    assert (preview.count, preview.more) == (BATCH + 7, False)
    operation = await queue.client.start_bulk_operation("retry", requested_by="ana", job_types=[work])
    assert (operation.status, operation.seen, operation.requested_by) == (ChainStatus.OPEN, 0, "ana")
    assert await queue.client.run_bulk_operations(batches=1) == 1
    half = await queue.client.get_bulk_operation(operation.id)
    assert (half.status, half.seen, half.changed) == (ChainStatus.OPEN, BATCH, BATCH)
    assert await queue.client.run_bulk_operations() == 1
    done = await queue.client.get_bulk_operation(operation.id)
    assert (done.status, done.seen, done.changed, done.skipped) == (ChainStatus.COMPLETED, BATCH + 7, BATCH + 7, 0)
    assert set(await queue.statuses(failed)) == {ChainStatus.OPEN}
    assert set(await queue.statuses(others)) == {ChainStatus.FAILED}
    assert await queue.client.run_bulk_operations() == 0
    assert [one.id for one in await queue.client.list_bulk_operations()] == [operation.id]


@pytest.mark.parametrize("blockers", ["newer", "older"])
async def test_a_chain_is_retried_with_its_failed_blockers_of_later_pages(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, blockers: str
) -> None:
    """So that they wait for them. Each is changed once. One that fails again before its page comes is skipped there."""
    monkeypatch.setattr(async_bulk_runner, "BATCH", 2)
    if blockers == "newer":
        # Children, which their parents have started.
        [parent, other_one] = await queue.client.start_chains([NewChain(other, 1), NewChain(other, 2)])
        for job in await queue.store.claim(ask("other", limit=2)):
            of_job = (NewJob(f"child-{number}-{job.id}", "work", "1") for number in range(2))
            await queue.store.finish([wait(job, *of_job)])
        children = [f"child-{number}-{one.id}" for one in (parent, other_one) for number in range(2)]
    else:
        children = [one.id for one in await queue.client.start_chains([NewChain(work, n) for n in range(4)])]
        parent = await queue.client.start_chain(other, 1, blockers=children[:2])
        other_one = await queue.client.start_chain(other, 1, blockers=children[2:])
    await queue.fail_all("work")
    await queue.fail_all("other")
    not_concerned = await queue.failed(1)
    operation = await queue.client.start_bulk_operation("retry", requested_by="ana")
    await queue.client.retry_chains(not_concerned)
    await queue.fail_all("work")
    while await queue.client.run_bulk_operations(batches=1):
        claimed = await queue.store.claim(ask("other", limit=10))
        assert claimed == []
        if blockers == "newer":
            await queue.fail_all("work")
            for job in await queue.store.claim(ask("other", limit=10)):
                await queue.store.finish([complete(job)])
    done = await queue.client.get_bulk_operation(operation.id)
    again = 4 if blockers == "newer" else 0
    assert (done.seen, done.changed, done.skipped) == (7 + again, 6, 1 + again)
    jobs = await queue.store.get_jobs(children)
    assert {job.attempt for job in jobs if job is not None} == {2 if blockers == "newer" else 1}
    ended = ChainStatus.COMPLETED if blockers == "newer" else ChainStatus.OPEN
    assert await queue.statuses([parent.id, other_one.id]) == [ended] * 2


async def test_blockers_that_the_filter_does_not_have_are_not_retried(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_bulk_runner, "BATCH", 1)
    attributes = {"user": "17"}
    [parent] = await queue.client.start_chains([NewChain(other, 1, attributes=attributes)])
    [job] = await queue.store.claim(ask("other"))
    children = [NewJob("mine", "work", "1", attributes={"user": "17"}), NewJob("not-mine", "work", "1")]
    await queue.store.finish([wait(job, *children)])
    await queue.fail_all("work")
    await queue.fail_all("other")
    operation = await queue.client.start_bulk_operation("retry", requested_by="ana", attributes=attributes)
    while await queue.client.run_bulk_operations(batches=1):
        pass
    done = await queue.client.get_bulk_operation(operation.id)
    assert (done.seen, done.changed, done.skipped) == (2, 2, 0)
    assert await queue.statuses([parent.id, "mine", "not-mine"]) == [
        ChainStatus.OPEN,
        ChainStatus.OPEN,
        ChainStatus.FAILED,
    ]


async def test_only_chains_with_the_error_are_retried(queue: Queue) -> None:
    down, wrong = await queue.failed(BATCH), await queue.client.start_chains([NewChain(work, n) for n in range(2)])
    for job in await queue.store.claim(ClaimRequest({"work": 60.0}, 10, "me", new_token())):
        error = JobError("handler", "no such user\nat line 7", "app.UserMissing", "Traceback")
        await queue.store.finish([Finish(job, FinishKind.FAIL, error=error)])
    summary = "app.UserMissing: no such user"
    preview = await queue.client.preview_bulk_operation("retry", job_types=[work], error=summary)
    assert (preview.count, preview.more) == (2, False)
    operation = await queue.client.start_bulk_operation("retry", requested_by="ana", job_types=[work], error=summary)
    await queue.client.run_bulk_operations()
    done = await queue.client.get_bulk_operation(operation.id)
    assert (done.seen, done.changed, done.skipped, done.error_summary) == (2, 2, 0, summary)
    assert set(await queue.statuses(down)) == {ChainStatus.FAILED}
    assert set(await queue.statuses([chain.id for chain in wrong])) == {ChainStatus.OPEN}


async def test_an_error_is_taken_as_it_is_and_as_it_is_shown(queue: Queue) -> None:
    """The command line escapes what is not printable."""
    await queue.client.start_chains([NewChain(work, n) for n in range(2)])
    messages = ["no\tanswer\xa0yet", "no answer yet"]
    for job, message in zip(await queue.store.claim(ask("work", limit=2)), messages, strict=True):
        await queue.store.finish([Finish(job, FinishKind.FAIL, error=JobError("handler", message, "ValueError"))])
    for error in ("ValueError: no\tanswer\xa0yet", r"ValueError: no\tanswer\xa0yet"):
        assert (await queue.client.preview_bulk_operation("retry", error=error)).count == 1
    operation = await queue.client.start_bulk_operation("retry", requested_by="ana", error=error)
    await queue.client.run_bulk_operations()
    assert (await queue.client.get_bulk_operation(operation.id)).changed == 1


async def test_what_failed_again_since_the_start_is_skipped(queue: Queue) -> None:
    ids = await queue.failed(3)
    operation = await queue.client.start_bulk_operation(BulkAction.RETRY, requested_by="ana")
    await queue.client.retry_chain(ids[0])
    await queue.fail_all("work")
    await queue.failed(2)
    await queue.client.run_bulk_operations()
    done = await queue.client.get_bulk_operation(operation.id)
    assert (done.seen, done.changed, done.skipped) == (3, 2, 1)
    assert await queue.statuses(ids) == [ChainStatus.FAILED, ChainStatus.OPEN, ChainStatus.OPEN]


@pytest.mark.quick
async def test_a_batch_whose_process_died_is_done_by_another(queue: Queue) -> None:
    ids = await queue.failed(3)
    operation = await queue.client.start_bulk_operation("retry", requested_by="ana")
    # The process dies right after its claim.
    [claimed] = await queue.store.claim(ask(BULK_OPERATION_TYPE))
    assert await queue.client.run_bulk_operations() == 0
    await expire(queue.store, claimed)
    done = await queue.client.get_bulk_operation(operation.id)
    while done.status is ChainStatus.OPEN:
        await queue.client.run_bulk_operations()
        done = await queue.client.get_bulk_operation(operation.id)
    assert (done.changed, done.skipped) == (3, 0)
    assert set(await queue.statuses(ids)) == {ChainStatus.OPEN}


async def test_two_runners_share_an_operation(
    state: StateAdapter, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chain is changed by one of them, and counted once."""
    monkeypatch.setattr(async_bulk_runner, "BATCH", 3)
    ids, log = await queue.failed(20), EventLog()
    async with AsyncExitStack() as stack:
        runners = [
            await stack.enter_async_context(AsyncClient(state, JOB_TYPES, notify=InProcessNotify(), observability=log))
            for _ in range(2)
        ]
        operation = await queue.client.start_bulk_operation("retry", requested_by="ana")
        done = await queue.client.get_bulk_operation(operation.id)
        while done.status is ChainStatus.OPEN:
            await asyncio.gather(*(one.run_bulk_operations() for one in runners))
            done = await queue.client.get_bulk_operation(operation.id)
    assert (done.status, done.seen, done.changed, done.skipped) == (ChainStatus.COMPLETED, 20, 20, 0)
    assert sorted(one.chain_id for one in log.of(ChainRetried)) == sorted(ids)


async def test_a_batch_on_redis_whose_process_died_before_its_finish(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is repeated; it changes nothing twice, and counts only what it has seen."""
    from queuert.state.redis import RedisState
    from queuert.state.redis.async_store import AsyncRedisStore

    state, before, died = RedisState(redis_url), AsyncRedisStore.finish, list[ClaimedJob]()

    async def finish(store: AsyncRedisStore, finishes: Sequence[Finish]) -> list[FinishResult]:
        if finishes[0].job.type == BULK_OPERATION_TYPE and not died:
            died.append(finishes[0].job)
            raise ConnectionAbortedError
        return await before(store, finishes)

    store = state.async_store(max_connections=1)
    await store.open()
    async with AsyncClient(state, JOB_TYPES, notify=InProcessNotify()) as client:
        queue = Queue(client, store)
        ids = await queue.failed(3)
        operation = await client.start_bulk_operation("retry", requested_by="ana")
        monkeypatch.setattr(AsyncRedisStore, "finish", finish)
        with pytest.raises(ConnectionAbortedError):
            await client.run_bulk_operations()
        assert set(await queue.statuses(ids)) == {ChainStatus.OPEN}
        [again, *_] = await store.claim(ask("work"))
        await store.finish([fail(again)])
        await expire(store, *died)
        done = await client.get_bulk_operation(operation.id)
        while done.status is ChainStatus.OPEN:
            await client.run_bulk_operations()
            done = await client.get_bulk_operation(operation.id)
        assert (done.seen, done.changed, done.skipped) == (1, 0, 1)
        assert (await queue.statuses(ids)).count(ChainStatus.FAILED) == 1
    await store.aclose()


class Renewals:
    """Tells when a store other than the test's own has answered renewals."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, own: AsyncStore) -> None:
        from queuert.state.redis.async_store import AsyncRedisStore

        monkeypatch.setattr(renewing, "INTERVAL", 0.01)
        self.answers = asyncio.Queue[bool]()
        before = AsyncRedisStore.renew

        async def renew(store: AsyncRedisStore, renewals: Sequence[Renewal]) -> list[bool]:
            answers = await before(store, renewals)
            if store is not own:
                self.answers.put_nowait(answers[0])
            return answers

        monkeypatch.setattr(AsyncRedisStore, "renew", renew)

    async def following(self) -> bool:
        """The answer of one that is asked from now on: one may be under way."""
        while not self.answers.empty():
            self.answers.get_nowait()
        answer = await in_time(self.answers.get())
        return await in_time(self.answers.get()) if answer else answer


@pytest.fixture
async def redis_queue(redis_url: str) -> AsyncIterator[Queue]:
    from queuert.state.redis import RedisState

    state = RedisState(redis_url)
    store = state.async_store(max_connections=1)
    await store.open()
    async with AsyncClient(state, JOB_TYPES, notify=InProcessNotify(), max_connections=1) as client:
        yield Queue(client, store)
    await store.aclose()


async def test_the_lease_of_a_batch_on_redis_is_renewed_while_it_runs(
    redis_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes. So it is done once, and its counts are those of what it has changed."""
    queue, renewals, before = redis_queue, Renewals(monkeypatch, redis_queue.store), _AsyncBatch._write_all

    async def write_all(batch: _AsyncBatch, *given: Any) -> set[str]:
        await run_out(queue.store, batch._job)
        assert await renewals.following()
        assert not (await queue.store.reap(ReapRequest({BULK_OPERATION_TYPE: AT_ONCE}))).reaped
        return await before(batch, *given)

    ids = await queue.failed(3)
    operation = await queue.client.start_bulk_operation("retry", requested_by="ana")
    monkeypatch.setattr(_AsyncBatch, "_write_all", write_all)
    assert await queue.client.run_bulk_operations() == 1
    done = await queue.client.get_bulk_operation(operation.id)
    assert (done.status, done.seen, done.changed, done.skipped) == (ChainStatus.COMPLETED, 3, 3, 0)
    assert set(await queue.statuses(ids)) == {ChainStatus.OPEN}


async def test_a_batch_on_redis_that_has_lost_its_lease_writes_nothing(
    redis_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process does the batch."""
    queue, before = redis_queue, _AsyncBatch._write_all
    ids = await queue.failed(3)
    operation = await queue.client.start_bulk_operation("retry", requested_by="ana")
    renewals = Renewals(monkeypatch, queue.store)

    async def write_all(batch: _AsyncBatch, *given: Any) -> set[str]:
        await queue.store.release([batch._job.lease])
        while await in_time(renewals.answers.get()):
            pass
        [job] = await queue.store.claim(ask(BULK_OPERATION_TYPE))
        assert job.id == batch._job.id
        return await before(batch, *given)

    monkeypatch.setattr(_AsyncBatch, "_write_all", write_all)
    await queue.client.run_bulk_operations()
    done = await queue.client.get_bulk_operation(operation.id)
    assert (done.status, done.seen, done.changed) == (ChainStatus.OPEN, 0, 0)
    assert set(await queue.statuses(ids)) == {ChainStatus.FAILED}


def after_the_first(
    queue: Queue, renewals: Renewals, monkeypatch: pytest.MonkeyPatch, call: str, batches: list[ClaimedJob]
) -> None:
    """Let the lease of a batch be lost when its first call of the store has returned."""
    from queuert.state.redis.async_store import AsyncRedisStore

    before, claim = getattr(AsyncRedisStore, call), AsyncRedisStore.claim

    async def claimed(store: AsyncRedisStore, request: ClaimRequest) -> list[ClaimedJob]:
        jobs = await claim(store, request)
        if store is not queue.store:
            batches.extend(jobs)
        return jobs

    async def called(store: AsyncRedisStore, *given: Any, **named: Any) -> Any:
        answer = await before(store, *given, **named)
        if store is not queue.store and batches:
            monkeypatch.setattr(AsyncRedisStore, call, before)
            await queue.store.release([batches[0].lease])
            while await in_time(renewals.answers.get()):
                pass
            assert [one.id for one in await queue.store.claim(ask(BULK_OPERATION_TYPE))] == [batches[0].id]
        return answer

    monkeypatch.setattr(AsyncRedisStore, "claim", claimed)
    monkeypatch.setattr(AsyncRedisStore, call, called)


async def test_a_cancel_whose_lease_is_lost_while_it_reads_writes_nothing(
    redis_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = redis_queue
    ids = [one.id for one in await queue.client.start_chains([NewChain(work, one) for one in range(3)])]
    operation = await queue.client.start_bulk_operation("cancel", requested_by="ana")
    batches = list[ClaimedJob]()
    after_the_first(queue, Renewals(monkeypatch, queue.store), monkeypatch, "list_type_traits", batches)
    await queue.client.run_bulk_operations()
    assert len(batches) == 1
    assert set(await queue.statuses(ids)) == {ChainStatus.OPEN}
    assert (await queue.client.get_bulk_operation(operation.id)).changed == 0


async def test_a_cancel_whose_lease_is_lost_cancels_no_children_that_it_has_spared(
    redis_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the child any more when the parent is written."""
    queue, before, looks = redis_queue, async_cascades._spread, list[Cascade]()
    child = JobType("child", input=int, output=int, closes_with_parent=True)
    job_types = JobTypes(work, other, child)
    async with AsyncClient(queue.client.state, job_types, notify=InProcessNotify(), max_connections=1) as client:
        mine = await client.start_chain(child, 1)
        parent = await client.start_chain(work, 1, blockers=[mine])
        second = await client.start_chain(other, 1, blockers=[mine])

        async def spread(*given: Any, **named: Any) -> Cascade:
            looks.append(await before(*given, **named))
            if len(looks) == 1:
                await queue.store.cancel_chains([second.id], reason="no")
            return looks[-1]

        monkeypatch.setattr(async_cascades, "_spread", spread)
        await client.start_bulk_operation("cancel", requested_by="ana", job_types=[work])
        batches = list[ClaimedJob]()
        after_the_first(queue, Renewals(monkeypatch, queue.store), monkeypatch, "cancel_chains", batches)
        await client.run_bulk_operations()
        assert looks[0].spared == {mine.id}
        assert await queue.statuses([parent.id, mine.id]) == [ChainStatus.CANCELLED, ChainStatus.OPEN]


async def test_what_a_batch_on_redis_wrote_before_it_lost_its_lease_is_reported(
    redis_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By notifications and events. It writes in two parts here."""
    monkeypatch.setattr(async_cascades, "MAX_CASCADE", 1)
    queue, log, notify = redis_queue, EventLog(), InProcessNotify()
    child = JobType("child", input=int, output=int, closes_with_parent=True)
    async with AsyncClient(
        queue.client.state, JobTypes(work, child), notify=notify, max_connections=1, observability=log
    ) as client:
        children = await client.start_chains([NewChain(child, one) for one in range(2)])
        parents = [await client.start_chain(work, 1, blockers=[one]) for one in children]
        await client.start_bulk_operation("cancel", requested_by="ana", job_types=[work])
        heard = set[str]()
        subscription = notify.subscribe(Topic.CHAINS, lambda one: heard.update(one.keys or ()))
        batches = list[ClaimedJob]()
        after_the_first(queue, Renewals(monkeypatch, queue.store), monkeypatch, "cancel_chains", batches)
        log.forget()
        await client.run_bulk_operations()
        subscription.close()
        cancelled, still_open = ChainStatus.CANCELLED, ChainStatus.OPEN
        assert await queue.statuses([one.id for one in parents]) == [cancelled, still_open]
        expected = {parents[0].id, children[0].id}
        assert {one.chain_id for one in log.of(ChainClosed)} == expected
        assert heard == expected


async def test_a_lease_counts_from_before_its_claim(redis_queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer may be late: the lease has expired by then, and the batch writes nothing."""
    from queuert.state.redis.async_store import AsyncRedisStore

    queue, before, now = redis_queue, AsyncRedisStore.claim, 100.0

    async def claim(store: AsyncRedisStore, request: ClaimRequest) -> list[ClaimedJob]:
        nonlocal now
        jobs = await before(store, request)
        now += async_bulk_runner.LEASE
        return jobs

    ids = await queue.failed(3)
    operation = await queue.client.start_bulk_operation("retry", requested_by="ana")
    for module in (renewing, async_bulk_runner):
        monkeypatch.setattr(module, "monotonic", lambda: now, raising=False)
    monkeypatch.setattr(AsyncRedisStore, "claim", claim)
    await queue.client.run_bulk_operations(batches=1)
    assert set(await queue.statuses(ids)) == {ChainStatus.FAILED}
    assert (await queue.client.get_bulk_operation(operation.id)).changed == 0


def test_a_sync_client_renews_the_lease_of_a_batch_on_redis(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread beside it, which ends with the batch."""
    from queuert.state.redis import RedisState
    from queuert.state.redis.sync_store import RedisStore

    monkeypatch.setattr(renewing, "INTERVAL", 0.01)
    kind = sync_bulk_runner._AsyncBatch
    renewed, before, write_all = threading.Semaphore(0), RedisStore.renew, kind._write_all

    def renew(store: RedisStore, renewals: Sequence[Renewal]) -> list[bool]:
        answers = before(store, renewals)
        if answers[0]:
            renewed.release()
        return answers

    def write_late(batch: sync_bulk_runner._AsyncBatch, *given: Any) -> set[str]:
        assert renewed.acquire(timeout=WAIT)
        assert renewed.acquire(timeout=WAIT)
        return write_all(batch, *given)

    monkeypatch.setattr(RedisStore, "renew", renew)
    monkeypatch.setattr(kind, "_write_all", write_late)
    with Client(RedisState(redis_url), JOB_TYPES, notify=InProcessNotify(), max_connections=1) as client:
        client.start_chain(work, 1)
        operation = client.start_bulk_operation("cancel", requested_by="ana")
        assert client.run_bulk_operations() == 1
        assert client.get_bulk_operation(operation.id).changed == 1
    assert not any(thread.name == renewing.THREAD for thread in threading.enumerate())


async def test_a_lease_that_could_not_be_renewed_is_lost_when_it_has_expired(
    redis_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await redis_queue.client.start_chain(work, 1)
    [job] = await redis_queue.store.claim(ClaimRequest({"work": 15.0}, 1, "me", new_token()))
    now = 100.0
    monkeypatch.setattr(renewing, "monotonic", lambda: now)
    lease = renewing.RenewedLease(job, 90.0)
    now = 104.9
    lease.check()
    now = 105.0
    with pytest.raises(LeaseLostError):
        lease.check()
    now = 114.0
    assert lease.answered(True, 110.0)
    now = 124.9
    lease.check()
    now = 125.0
    with pytest.raises(LeaseLostError) as lost:
        lease.check()
    assert lost.value.reason is AbortReason.LEASE_NOT_RENEWED


async def test_a_cancelled_operation_changes_nothing_more(queue: Queue) -> None:
    ids = await queue.failed(BATCH + 1)
    operation = await queue.client.start_bulk_operation("retry", requested_by="ana")
    await queue.client.run_bulk_operations(batches=1)
    await queue.client.cancel_chain(operation.id, reason="a mistake")
    assert await queue.client.run_bulk_operations() == 0
    stopped = await queue.client.get_bulk_operation(operation.id)
    assert (stopped.status, stopped.changed, str(stopped.error)) == (ChainStatus.CANCELLED, BATCH, "a mistake")
    assert (await queue.statuses(ids)).count(ChainStatus.FAILED) == 1


async def test_cancel_takes_open_chains_but_not_operations(queue: Queue) -> None:
    chains = await queue.client.start_chains([NewChain(work, number) for number in range(3)])
    waiting = await queue.client.start_bulk_operation("retry", requested_by="ben")
    operation = await queue.client.start_bulk_operation("cancel", requested_by="ana", reason="not needed")
    while await queue.client.run_bulk_operations(batches=1):
        pass
    assert (await queue.client.get_bulk_operation(operation.id)).changed == 3
    assert (await queue.client.get_bulk_operation(waiting.id)).status is ChainStatus.COMPLETED
    [record, *_] = await queue.store.get_chains([chain.id for chain in chains])
    assert record is not None
    assert (record.status, str(record.error)) == (ChainStatus.CANCELLED, "not needed")


async def test_an_operation_of_the_same_id_is_started_once(queue: Queue) -> None:
    failed = await queue.failed(2)
    first = await queue.client.start_bulk_operation("retry", requested_by="ana", id="retry-1")
    again = await queue.client.start_bulk_operation("retry", requested_by="ben", id="retry-1")
    assert (first.id, again) == ("retry-1", first)
    await queue.client.run_bulk_operations()
    done = await queue.client.start_bulk_operation("retry", requested_by="ana", id="retry-1")
    assert (done.status, done.changed) == (ChainStatus.COMPLETED, 2)
    with pytest.raises(JobTypeMismatchError, match=f"{failed[0]}' is of job type 'work'"):
        await queue.client.start_bulk_operation("retry", requested_by="ana", id=failed[0])
    [job, *_] = await queue.store.claim(ask("work"))
    await queue.store.finish([Finish(job, FinishKind.CONTINUE, continuation=NewJob("second", "work", "1"))])
    with pytest.raises(JobIdConflictError, match="second"):
        await queue.client.start_bulk_operation("retry", requested_by="ana", id="second")
    with pytest.raises(InvalidIdentifierError):
        await queue.client.start_bulk_operation("retry", requested_by="ana", id="")


async def test_chains_of_the_library_are_changed_only_by_name(queue: Queue) -> None:
    [chain] = await queue.client.start_chains([NewChain(work, 1)])
    await queue.store.start_jobs([NewJob("delivery", DELIVERY_TYPE, "1")])
    assert (await queue.client.preview_bulk_operation("cancel")).count == 1
    assert (await queue.client.preview_bulk_operation("cancel", job_types=[work, DELIVERY_TYPE])).count == 2
    operation = await queue.client.start_bulk_operation("cancel", requested_by="ana")
    await queue.client.run_bulk_operations()
    assert (await queue.client.get_bulk_operation(operation.id)).seen == 1
    assert await queue.statuses([chain.id, "delivery"]) == [ChainStatus.CANCELLED, ChainStatus.OPEN]
    named = await queue.client.start_bulk_operation("cancel", requested_by="ana", job_types=[DELIVERY_TYPE])
    await queue.client.run_bulk_operations()
    assert (await queue.client.get_bulk_operation(named.id)).changed == 1
    assert await queue.statuses(["delivery"]) == [ChainStatus.CANCELLED]
    done = await queue.client.start_bulk_operation("delete", requested_by="ana", job_types=[BULK_OPERATION_TYPE])
    await queue.client.run_bulk_operations()
    # The others, and not itself.
    assert (await queue.client.get_bulk_operation(done.id)).changed == 2


async def test_chains_of_the_library_are_pruned_only_by_name(queue: Queue) -> None:
    """Operations say who changed what; workers keep them by their own retention."""
    [chain] = await queue.client.start_chains([NewChain(work, 1)])
    operation = await queue.client.start_bulk_operation("cancel", requested_by="ana")
    await queue.client.run_bulk_operations()
    assert (await queue.client.preview_prune(older_than=1e-6)).count == 1
    assert await queue.client.prune_chains(older_than=1e-6) == 1
    assert await queue.store.get_chains([chain.id]) == [None]
    assert (await queue.client.get_bulk_operation(operation.id)).requested_by == "ana"
    assert (await queue.client.preview_prune(older_than=1e-6, job_types=[BULK_OPERATION_TYPE])).count == 1
    assert await queue.client.prune_chains(older_than=1e-6, job_types=[BULK_OPERATION_TYPE]) == 1
    assert await queue.store.get_chains([operation.id]) == [None]


async def test_a_preview_looks_at_no_chains_of_the_library(queue: Queue) -> None:
    """There may be more deliveries than it looks at, all of them older than what is to be changed."""
    await queue.store.start_jobs([NewJob(f"delivery-{number}", DELIVERY_TYPE, "1") for number in range(3)])
    assert await queue.client.preview_bulk_operation("cancel", counted_up_to=2) == BulkPreview(0, False)
    await queue.client.start_chains([NewChain(work, 1)])
    one = (PreviewGroup("work", ChainStatus.OPEN, 1),)
    assert await queue.client.preview_bulk_operation("cancel", counted_up_to=2) == BulkPreview(1, False, one)
    deliveries = await queue.client.preview_bulk_operation("cancel", counted_up_to=2, job_types=[DELIVERY_TYPE])
    assert deliveries == BulkPreview(2, True, (PreviewGroup(DELIVERY_TYPE, ChainStatus.OPEN, 2),))


async def test_delete_skips_blockers_of_jobs_that_stay(queue: Queue) -> None:
    [blocker, *others] = await queue.failed(3)
    await queue.client.start_chain(other, 1, blockers=[blocker])
    operation = await queue.client.start_bulk_operation("delete", requested_by="ana", job_types=["work"])
    await queue.client.run_bulk_operations()
    done = await queue.client.get_bulk_operation(operation.id)
    assert (done.seen, done.changed, done.skipped) == (3, 2, 1)
    assert await queue.store.get_chains(others) == [None, None]


@pytest.mark.parametrize("action", ["cancel", "retry", "delete", "reprioritize"])
async def test_a_chain_that_somebody_holds_is_left_out(dsn: str, monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    """Its transaction may last for long. The operation does not wait for it, and changes the others."""
    monkeypatch.setattr(async_bulk_runner, "LOCK_TIMEOUT", 0.1)
    state = PostgresState(dsn)
    store = state.async_store(max_connections=1)
    await store.open()
    async with AsyncClient(state, JOB_TYPES, notify=InProcessNotify()) as client, await _connected(dsn) as others:
        queue = Queue(client, store)
        ids = await queue.failed(5)
        if action in ("cancel", "reprioritize"):
            await client.retry_chains(ids)
        await others.execute("SELECT id FROM queuert.job WHERE id = ANY (%s) FOR UPDATE", (ids[1:3],))
        priority = 7 if action == "reprioritize" else None
        operation = await client.start_bulk_operation(action, requested_by="ana", job_types=[work], priority=priority)
        assert await client.run_bulk_operations() == 1
        done = await client.get_bulk_operation(operation.id)
        assert (done.status, done.seen, done.changed, done.skipped) == (ChainStatus.COMPLETED, 5, 3, 2)
        await others.rollback()
        held, free = await store.get_jobs(ids[1:3]), await store.get_jobs([ids[0], *ids[3:]])
        states = {None if one is None else (one.status, one.priority) for one in held}
        assert states.isdisjoint({None if one is None else (one.status, one.priority) for one in free})
    await store.aclose()


@pytest.mark.parametrize("held", ["child", "grandchild", "dependent", "next"])
async def test_a_chain_is_left_out_with_what_would_change_with_it(
    dsn: str, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    """Whoever holds a child that closes with it, a job that waits for it, or its last job, holds the chain."""
    monkeypatch.setattr(async_bulk_runner, "LOCK_TIMEOUT", 0.1)
    first = JobType("first", input=int, output=int, continues_with=other)
    child = JobType("child", input=int, output=int, closes_with_parent=True)
    job_types = JobTypes(first, other, child)
    async with (
        AsyncClient(PostgresState(dsn), job_types, notify=InProcessNotify()) as client,
        await _connected(dsn) as others,
    ):
        await client.start_chain(child, 1, id="grandchild")
        await client.start_chain(child, 1, id="child", blockers=["grandchild"])
        await client.start_chain(first, 1, id="parent", blockers=["child"])
        if held == "next":
            await client.continue_chain("parent", other, 1, id="next", blockers=["child"])
        await client.start_chain(other, 1, id="dependent", blockers=["parent"])
        free = await client.start_chain(first, 1)
        await others.execute("SELECT id FROM queuert.job WHERE id = %s FOR UPDATE", (held,))
        for changed, seen in ((1, 2), (1, 1)):
            operation = await client.start_bulk_operation("cancel", requested_by="ana", job_types=[first])
            await client.run_bulk_operations()
            done = await client.get_bulk_operation(operation.id)
            assert (done.status, done.seen, done.changed) == (ChainStatus.COMPLETED, seen, changed)
            is_open = ChainStatus.OPEN if seen > changed else ChainStatus.CANCELLED
            assert {(await client.get_chain(id)).status for id in ("parent", "child", "grandchild")} == {is_open}
            assert (await free.refresh()).status is ChainStatus.CANCELLED
            await others.rollback()


async def test_a_chain_is_not_retried_while_somebody_holds_what_it_waits_for(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_bulk_runner, "LOCK_TIMEOUT", 0.1)
    async with (
        AsyncClient(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client,
        await _connected(dsn) as others,
    ):
        blocker = await client.start_chain(work, 1)
        chains = await client.start_chains([NewChain(other, 1, blockers=[blocker]), NewChain(other, 2)])
        await client.cancel_chains(chains)
        await others.execute("SELECT id FROM queuert.job WHERE id = %s FOR UPDATE", (blocker.id,))
        operation = await client.start_bulk_operation("retry", requested_by="ana", statuses=["cancelled"])
        await client.run_bulk_operations()
        done = await client.get_bulk_operation(operation.id)
        assert (done.status, done.seen, done.changed, done.skipped) == (ChainStatus.COMPLETED, 2, 1, 1)
        assert [(await one.refresh()).status for one in chains] == [ChainStatus.CANCELLED, ChainStatus.OPEN]


@pytest.mark.parametrize("action", ["cancel", "delete", "retry"])
async def test_what_is_refused_is_left_out_at_once(queue: Queue, monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    """However many chains are refused: the second write has the others only."""
    refused, writes, before = await queue.failed(30), [], _AsyncBatch._write_all
    others = await queue.failed(2)
    if action == "delete":
        await queue.client.start_chains([NewChain(other, 1, blockers=[id]) for id in refused for _ in range(5)])
    if action == "cancel":
        await queue.client.retry_chains([*refused, *others])
        # With a type that closes with its parent a cancel looks at each chain before it writes.
        traits = (TypeTraits("child", closes_with_parent=True),)
        beat = WorkerHeartbeat("w", "w", "here", 1, "1", (), 1, 0, 0.0, traits=traits)
        await queue.store.record_heartbeat(beat, 60.0)

    async def write_all(batch: _AsyncBatch, request: BulkRequest, ids: Sequence[str], *more: Any) -> set[str]:
        writes.append(len(ids))
        if action == "retry" and len(writes) == 1:
            # Others retry them after the page was read.
            await queue.store.retry_chains(refused, connection=more[-1])
        if action == "cancel" and len(writes) == 1:
            # Others delete them.
            await queue.store.delete_chains(refused, connection=more[-1])
        return await before(batch, request, ids, *more)

    monkeypatch.setattr(_AsyncBatch, "_write_all", write_all)
    operation = await queue.client.start_bulk_operation(action, requested_by="ana", job_types=["work"])
    await queue.client.run_bulk_operations()
    done = await queue.client.get_bulk_operation(operation.id)
    assert (done.seen, done.changed, done.skipped) == (32, 2, 30)
    assert writes == [32, 2]
    ended = {"cancel": [ChainStatus.CANCELLED] * 2, "delete": [], "retry": [ChainStatus.OPEN] * 2}
    assert await queue.statuses(others) == ended[action]


async def test_only_too_many_chains_for_one_write_are_changed_in_parts(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another error would be that of each part."""
    writes = []

    async def write_all(batch: _AsyncBatch, *given: Any) -> set[str]:
        writes.append(given)
        raise ConfigurationError("it is wrong")

    monkeypatch.setattr(_AsyncBatch, "_write_all", write_all)
    await queue.failed(4)
    operation = await queue.client.start_bulk_operation("retry", requested_by="ana")
    await queue.client.run_bulk_operations()
    done = await queue.client.get_bulk_operation(operation.id)
    assert (len(writes), done.status, "it is wrong" in str(done.error)) == (1, ChainStatus.FAILED, True)


async def test_filter_is_kept_and_shown(queue: Queue) -> None:
    given = {"user": "17", "tag": ("a", "b")}
    match = await queue.client.start_chain(work, 1, attributes=given)
    await queue.client.start_chain(work, 2, attributes={"user": "17", "tag": "a"})
    operation = await queue.client.start_bulk_operation("cancel", requested_by="ana", attributes=given)
    assert (operation.attributes, operation.statuses) == (given, (ChainStatus.OPEN,))
    await queue.client.run_bulk_operations()
    assert (await queue.client.get_bulk_operation(operation.id)).changed == 1
    assert await queue.statuses([match.id]) == [ChainStatus.CANCELLED]


async def test_operations_of_an_action_are_read_in_large_pages(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few are wanted: there may be thousands of other actions before them."""
    wanted = [(await queue.client.start_bulk_operation("cancel", requested_by="ana")).id for _ in range(2)]
    for _ in range(5):
        await queue.client.start_bulk_operation("retry", requested_by="ana")
    read = list[int]()
    store = await queue.client._open_store()
    list_chains = store.list_chains

    async def noted(filter: ChainFilter, page: PageRequest) -> Page[ChainRecord]:
        read.append(page.limit)
        return await list_chains(filter, page)

    monkeypatch.setattr(store, "list_chains", noted)
    first = await queue.client.list_bulk_operations(actions=["cancel"], limit=1)
    second = await queue.client.list_bulk_operations(actions=["cancel"], limit=1, cursor=first.next_cursor)
    assert [one.id for one in (*first, *second)] == wanted[::-1]
    assert second.next_cursor is None
    assert read == [MAX_PAGE, MAX_PAGE]
    assert await queue.client.list_bulk_operations(actions=[]) == Page((), None)
    assert len(read) == 2


async def test_no_batches_return_what_a_dead_process_did_to_the_queue(queue: Queue) -> None:
    operation = await queue.client.start_bulk_operation("retry", requested_by="ana")
    [job] = await queue.store.claim(ClaimRequest({BULK_OPERATION_TYPE: 60.0}, 1, "dead", new_token()))
    await expire(queue.store, job)
    assert await queue.client.run_bulk_operations(batches=0) == 0
    assert (await queue.client.get_bulk_operation(operation.id)).status is ChainStatus.OPEN
    [returned] = await queue.store.get_jobs([job.id])
    assert returned is not None
    assert returned.status in (JobStatus.SCHEDULED, JobStatus.READY)


async def test_counting_of_a_preview_ends(queue: Queue) -> None:
    await queue.failed(5)
    preview = await queue.client.preview_bulk_operation("retry", counted_up_to=3)
    assert (preview.count, preview.more) == (3, True)


async def test_an_input_that_nobody_wrote_fails_the_operation(queue: Queue) -> None:
    [started] = await queue.store.start_jobs([NewJob("mine", BULK_OPERATION_TYPE, "{}")])
    assert await queue.client.run_bulk_operations() == 1
    assert await queue.statuses([started.id]) == [ChainStatus.FAILED]


async def test_bad_arguments_are_refused(queue: Queue) -> None:
    client = queue.client
    with pytest.raises(ConfigurationError, match="action must be among"):
        await client.start_bulk_operation("explode", requested_by="ana")
    with pytest.raises(ConfigurationError, match="statuses of a bulk retry must be among"):
        await client.start_bulk_operation("retry", requested_by="ana", statuses=["open"])
    with pytest.raises(ConfigurationError, match="needs priority"):
        await client.start_bulk_operation("reprioritize", requested_by="ana")
    with pytest.raises(ConfigurationError, match="reason must only be given to a bulk cancel"):
        await client.start_bulk_operation("retry", requested_by="ana", reason="no")
    with pytest.raises(InvalidIdentifierError, match="requested_by"):
        await client.start_bulk_operation("retry", requested_by="")
    with pytest.raises(ConfigurationError, match="counted_up_to"):
        await client.preview_bulk_operation("retry", counted_up_to=0)
    with pytest.raises(ChainNotFoundError):
        await client.get_bulk_operation("unknown")
    chain = await client.start_chain(work, 1)
    with pytest.raises(JobTypeMismatchError, match=f"is of job type 'work', not '{BULK_OPERATION_TYPE}'"):
        await client.get_bulk_operation(chain)
    for error, message in (
        (b"x", "error must be a string, got bytes"),
        ("a\0b", "error must not contain a NUL character"),
        ("\ud800", "error must not contain a lone surrogate"),
        ("x" * 3_000_000, "error must have at most 4000 characters, got 3000000"),
    ):
        given: Any = error
        with pytest.raises(InvalidIdentifierError, match=message):
            await client.start_bulk_operation("retry", requested_by="ana", error=given)
        with pytest.raises(InvalidIdentifierError, match=message):
            await client.preview_bulk_operation("retry", error=given)
    wrong: Any = 5
    with pytest.raises(ConfigurationError, match=r"statuses must be a sequence of .*, got one int"):
        await client.preview_bulk_operation("retry", statuses=wrong)
    with pytest.raises(ConfigurationError, match=r"job types must be a sequence of .*, got one int"):
        await client.preview_bulk_operation("retry", job_types=wrong)
    with pytest.raises(ConfigurationError, match="reason must be a string, got int"):
        await client.start_bulk_operation("cancel", requested_by="ana", reason=wrong)
    with pytest.raises(ConfigurationError, match="reason must be a string, got int"):
        await client.pause_job_types([work], reason=wrong)
    with pytest.raises(ConfigurationError, match=r"jobs must be a sequence of ids, got one int"):
        await client.trigger_jobs(wrong)
    text: Any = "x"
    with pytest.raises(ConfigurationError, match="batches must be an integer of at least 0, got 'x'"):
        await client.run_bulk_operations(batches=text)
    with pytest.raises(ConfigurationError, match="batches must be an integer of at least 0, got -1"):
        await client.run_bulk_operations(batches=-1)
    with pytest.raises(ConfigurationError, match=r"chains must be handles of this client, got 'x': get_chain"):
        await client.wait([text])
    assert list(await client.list_bulk_operations()) == []


async def test_a_reason_is_made_storable_and_shortened(queue: Queue) -> None:
    [chain] = await queue.client.start_chains([NewChain(work, 1)])
    operation = await queue.client.start_bulk_operation("cancel", requested_by="ana", reason="a\0b\ud800" + "x" * 3_000)
    assert operation.reason is not None
    assert operation.reason.startswith("a\ufffdb\ufffdx")
    assert len(operation.reason) <= 2_000
    await queue.client.run_bulk_operations()
    [record] = await queue.store.get_chains([chain.id])
    assert record is not None
    assert record.error is not None
    assert record.error.message == operation.reason


@pytest.mark.parametrize("output", ["junk", {"seen": 1}, {"seen": 1, "changed": "1", "skipped": None}])
async def test_an_operation_whose_output_somebody_else_has_written(queue: Queue, output: Any) -> None:
    """Workers and completers may complete any chain in SQL; the operation is listed with what it had counted."""
    operation = await queue.client.start_bulk_operation("retry", requested_by="ana")
    [job] = await queue.store.claim(ClaimRequest({BULK_OPERATION_TYPE: 60.0}, 1, "me", new_token()))
    await queue.store.finish([Finish(job, FinishKind.COMPLETE, output=json.dumps(output))])
    assert (await queue.client.get_bulk_operation(operation.id)).changed == 0
    [listed] = await queue.client.list_bulk_operations()
    assert (listed.id, listed.status, listed.seen) == (operation.id, ChainStatus.COMPLETED, 0)


@pytest.mark.parametrize("input", ['"junk"', '{"types": null}'])
async def test_a_chain_that_is_none_is_not_listed(queue: Queue, input: str) -> None:
    """Whoever may start chains can write one of the type."""
    operation = await queue.client.start_bulk_operation("retry", requested_by="ana")
    await queue.store.start_jobs([NewJob("forged", BULK_OPERATION_TYPE, input)])
    assert [one.id for one in await queue.client.list_bulk_operations()] == [operation.id]
    with pytest.raises(ConfigurationError, match="must be written by start_bulk_operation"):
        await queue.client.get_bulk_operation("forged")
