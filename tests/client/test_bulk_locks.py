"""Batches of bulk operations beside transactions that hold rows of some chains, on Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from queuert import AsyncClient, JobType, JobTypes, NewChain
from queuert.bulk_operations import BulkOperation, BulkRequest
from queuert.client import async_bulk_runner, async_cascades
from queuert.client.async_bulk_runner import _AsyncBatch
from queuert.client.async_cascades import Cascade
from queuert.errors import NotInStatusError, StateUnavailableError
from queuert.ids import new_token
from queuert.job_types import BULK_OPERATION_TYPE
from queuert.jobs import ChainStatus
from queuert.notify.in_process import InProcessNotify
from queuert.observability.events import ChainClosed
from queuert.state.paging import Page
from queuert.state.postgres import PostgresState
from queuert.state.postgres.async_transaction import AsyncPostgresTransaction
from queuert.state.types import ChainUpdate, ClaimRequest, Finish, FinishResult, NewJob
from queuert.testing.conformance.builders import ask, fail, wait
from queuert.testing.events import EventLog
from tests.support.waiting import until

work = JobType("work", input=int, output=int)
other = JobType("other", input=int, output=int, continues_with=work)
first = JobType("first", input=int, output=int, continues_with=other)
child = JobType("child", input=int, output=int, closes_with_parent=True)
JOB_TYPES = JobTypes(work, other, first, child)

OPEN, COMPLETED, FAILED, CANCELLED = ChainStatus.OPEN, ChainStatus.COMPLETED, ChainStatus.FAILED, ChainStatus.CANCELLED


class Queue:
    """A client, and a connection of somebody else's, who holds rows."""

    def __init__(self, client: AsyncClient, others: psycopg.AsyncConnection[Any], dsn: str) -> None:
        self.client = client
        self.others = others
        self.dsn = dsn
        self.log = EventLog()

    async def hold(self, *ids: str) -> None:
        await self.others.execute("SELECT id FROM queuert.job WHERE id = ANY (%s) FOR UPDATE", (list(ids),))

    async def refer(self, *ids: str) -> None:
        """Commit rows that are deleted with the jobs, and hold them."""
        await self.others.execute("CREATE TABLE mine (id text REFERENCES queuert.job ON DELETE CASCADE, n int)")
        await self.others.execute("INSERT INTO mine SELECT unnest(%s::text[]), 1", (list(ids),))
        await self.others.commit()
        await self.others.execute("UPDATE mine SET n = 2")

    async def fail_all(self, *types: str) -> None:
        store = await self.client._open_store()
        for type in types:
            while claimed := await store.claim(ClaimRequest({type: 60.0}, 500, "me", new_token())):
                await store.finish([fail(job) for job in claimed])

    async def closed(self, *ids: str) -> None:
        await self.client.start_chains([NewChain(work, 1, id=id) for id in ids])
        await self.client.cancel_chains(ids)

    async def done(self, action: str, *, runs: int = 1, **filter: Any) -> BulkOperation:
        operation = await self.client.start_bulk_operation(action, requested_by="ana", **filter)
        assert await self.client.run_bulk_operations() == runs
        return await self.client.get_bulk_operation(operation.id)

    async def statuses(self, *ids: str) -> list[ChainStatus]:
        return [(await self.client.get_chain(id)).status for id in ids]


@pytest.fixture
async def queue(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Queue]:
    monkeypatch.setattr(async_bulk_runner, "LOCK_TIMEOUT", 0.1)
    monkeypatch.setattr(async_bulk_runner, "SHORT_LOCK_TIMEOUT", 0.01, raising=False)
    log = EventLog()
    async with (
        AsyncClient(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify(), observability=log) as client,
        await psycopg.AsyncConnection.connect(dsn) as others,
    ):
        queue = Queue(client, others, dsn)
        queue.log = log
        yield queue
        await others.rollback()


def counts(done: BulkOperation) -> tuple[ChainStatus, int, int, int]:
    return done.status, done.seen, done.changed, done.skipped


@pytest.mark.parametrize("kind", [child, work])
async def test_a_held_child_that_the_filter_has_as_well(queue: Queue, kind: JobType[int, int]) -> None:
    """Its parent is left out with it if it closes with its parent. The others are cancelled."""
    await queue.client.start_chain(kind, 1, id="child")
    await queue.client.start_chain(first, 1, id="parent", blockers=["child"])
    await queue.client.start_chain(work, 1, id="free")
    await queue.hold("child")
    changed = 1 if kind is child else 2
    assert counts(await queue.done("cancel")) == (COMPLETED, 3, changed, 3 - changed)
    await queue.others.rollback()
    parent = OPEN if kind is child else CANCELLED
    assert await queue.statuses("child", "parent", "free") == [OPEN, parent, CANCELLED]


async def test_a_chain_is_not_deleted_while_a_new_row_refers_to_a_job_in_its_middle(queue: Queue) -> None:
    await queue.client.start_chain(first, 1, id="chain")
    await queue.client.continue_chain("chain", other, 1, id="middle")
    await queue.client.continue_chain("chain", work, 1, id="last")
    await queue.client.cancel_chain("chain")
    await queue.closed("free")
    await queue.others.execute("CREATE TABLE mine (id text REFERENCES queuert.job)")
    await queue.others.commit()
    await queue.others.execute("INSERT INTO mine VALUES ('middle')")
    assert counts(await queue.done("delete")) == (COMPLETED, 2, 1, 1)
    assert await queue.statuses("chain") == [CANCELLED]


async def test_a_chain_is_not_deleted_while_a_row_that_goes_with_it_is_held(queue: Queue) -> None:
    """No row of a job is held: the write alone meets the lock. It is then done in halves."""
    await queue.closed(*(f"chain-{number}" for number in range(8)))
    await queue.refer("chain-1", "chain-6")
    assert counts(await queue.done("delete")) == (COMPLETED, 8, 6, 2)
    await queue.others.rollback()
    assert counts(await queue.done("delete")) == (COMPLETED, 2, 2, 0)


async def test_a_batch_waits_without_result_a_few_times_only(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_bulk_runner, "MAX_TIMEOUTS", 3, raising=False)
    ids = [f"chain-{number}" for number in range(8)]
    await queue.closed(*ids)
    await queue.refer(*ids[:6])
    done = await queue.done("delete")
    # Eight, four, two and one have waited, and none was tried after that.
    assert counts(done) == (COMPLETED, 8, 0, 8)


async def test_operations_at_once_do_not_skip_what_the_other_changes(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their batches take turns."""
    await queue.client.start_chains([NewChain(work, 1) for _ in range(40)])
    store = await queue.client._open_store()
    held = asyncio.Event()
    looked = store.held_chains

    async def slow(*arguments: Any, **more: Any) -> list[str]:
        found = await looked(*arguments, **more)
        if not held.is_set():
            # The other one begins while this batch has its locks.
            held.set()
            await _is_waiting(queue.dsn)
        return found

    one = await queue.client.start_bulk_operation("reprioritize", requested_by="ana", priority=5)
    other_one = await queue.client.start_bulk_operation("cancel", requested_by="ben")
    monkeypatch.setattr(store, "held_chains", slow)
    async with AsyncClient(PostgresState(queue.dsn), JOB_TYPES, notify=InProcessNotify()) as second:
        first_batch = asyncio.ensure_future(queue.client.run_bulk_operations(batches=1))
        await held.wait()
        assert await second.run_bulk_operations(batches=1) == 1
        assert await first_batch == 1
    assert counts(await queue.client.get_bulk_operation(one.id)) == (COMPLETED, 40, 40, 0)
    assert counts(await queue.client.get_bulk_operation(other_one.id)) == (COMPLETED, 40, 40, 0)


async def _is_waiting(dsn: str) -> None:
    query = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(dsn, autocommit=True) as connection:
        await until(lambda: connection.execute(query).fetchall(), "the other batch waits for its turn")


async def test_a_table_that_is_locked_fails_no_operation(queue: Queue) -> None:
    """A lock timeout of a read says nothing of chains: the batch is repeated."""
    await queue.client.start_chain(work, 1)
    operation = await queue.client.start_bulk_operation("cancel", requested_by="ana")
    await queue.others.execute("LOCK TABLE queuert.type_trait IN ACCESS EXCLUSIVE MODE")
    state = PostgresState(make_conninfo(queue.dsn, options="-c lock_timeout=100"))
    async with AsyncClient(state, JOB_TYPES, notify=InProcessNotify()) as client:
        with pytest.raises(StateUnavailableError, match="lock timeout"):
            await client.run_bulk_operations()
    await queue.others.rollback()
    assert (await queue.client.get_bulk_operation(operation.id)).status is OPEN


async def test_what_others_only_refer_to_is_not_held(queue: Queue) -> None:
    """A foreign key of theirs locks a job, too, which keeps nobody from changing it."""
    await queue.client.start_chains([NewChain(work, 1, id=id) for id in "abcd"])
    await queue.hold("a")
    await queue.others.execute("SELECT id FROM queuert.job WHERE id IN ('b', 'c') FOR KEY SHARE")
    assert counts(await queue.done("cancel")) == (COMPLETED, 4, 3, 1)


async def test_a_child_that_is_held_after_its_parent_was_cancelled_stays(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one is cancelled. What was written before counts, and its events are emitted."""
    await queue.client.start_chains([NewChain(child, 1, id=id) for id in ("child", "free")])
    for id in ("mine", "theirs"):
        await queue.client.start_chain(first, 1, id=id, blockers=["child", "free"])
    before, looks = async_cascades._spread, []

    async def spread(*arguments: Any, **more: Any) -> Cascade:
        found = await before(*arguments, **more)
        looks.append(found)
        if len(looks) == 1:
            # The other parent is cancelled meanwhile, by somebody who does not know of the child.
            async with AsyncClient(PostgresState(queue.dsn), JobTypes(work), notify=InProcessNotify()) as client:
                await client.cancel_chain("theirs")
            await queue.hold("child")
        return found

    theirs = await queue.client.get_chain("theirs")
    monkeypatch.setattr(async_cascades, "_spread", spread)
    done = await queue.done("cancel", job_types=[first], before=theirs.created_at)
    assert counts(done) == (COMPLETED, 1, 1, 0)
    assert await queue.statuses("mine", "child", "free") == [CANCELLED, OPEN, CANCELLED]
    assert [one.chain_id for one in queue.log.of(ChainClosed)] == ["mine", "free", done.id]


async def test_a_call_that_has_cancelled_a_chain_does_not_fail_for_its_child(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent is committed then."""
    await queue.client.start_chain(child, 1, id="child")
    await queue.client.start_chain(first, 1, id="parent", blockers=["child"])
    before = async_cascades.closing_with

    async def closing_with(store: Any, ids: Sequence[str], *more: Any) -> Cascade:
        found = await before(store, ids, *more)
        if "parent" in ids:
            await queue.hold("child")
            return Cascade(["parent"], {"child"})
        return found

    monkeypatch.setattr(async_cascades, "closing_with", closing_with)
    dsn = make_conninfo(queue.dsn, options="-c lock_timeout=20")
    async with AsyncClient(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
        assert await client.cancel_chains(["parent"]) == [True]
    assert await queue.statuses("parent", "child") == [CANCELLED, OPEN]


async def test_a_chain_is_not_retried_without_its_blocker(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would run at once, and fail again. On this page or another, nor those that wait for it."""
    await queue.client.start_chains([NewChain(work, 1, id="blocker"), NewChain(work, 1, id="free")])
    await queue.client.start_chain(other, 1, id="parent", blockers=["blocker"])
    await queue.client.start_chain(first, 1, id="grandparent", blockers=["parent"])
    await queue.fail_all("work", "other", "first")
    await queue.hold("blocker")
    assert counts(await queue.done("retry")) == (COMPLETED, 4, 1, 3)
    assert await queue.statuses("blocker", "parent", "grandparent", "free") == [FAILED, FAILED, FAILED, OPEN]
    monkeypatch.setattr(async_bulk_runner, "BATCH", 1)
    await queue.client.cancel_chain("free")
    assert counts(await queue.done("retry", runs=3)) == (COMPLETED, 3, 0, 3)
    await queue.others.rollback()
    assert counts(await queue.done("retry", runs=3)) == (COMPLETED, 3, 3, 0)
    assert await queue.statuses("blocker", "parent", "grandparent") == [OPEN] * 3


async def test_a_blocker_that_was_left_out_is_retried_on_its_own_page(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not changed, so it counts there."""
    monkeypatch.setattr(async_bulk_runner, "BATCH", 1)
    await queue.client.start_chain(other, 1, id="parent")
    store = await queue.client._open_store()
    [job] = await store.claim(ask("other"))
    await store.finish([wait(job, NewJob("blocker", "work", "1"))])
    await queue.fail_all("work", "other")
    await queue.hold("blocker")
    operation = await queue.client.start_bulk_operation("retry", requested_by="ana")
    assert await queue.client.run_bulk_operations(batches=1) == 1
    await queue.others.rollback()
    await queue.client.run_bulk_operations()
    assert counts(await queue.client.get_bulk_operation(operation.id)) == (COMPLETED, 2, 1, 1)
    assert await queue.statuses("parent", "blocker") == [FAILED, OPEN]


@pytest.mark.parametrize(("given", "of_writes"), [(0, "100ms"), (30, "30ms"), (200, "100ms")])
async def test_a_batch_waits_no_longer_than_its_login_and_its_finish_as_before(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, given: int, of_writes: str
) -> None:
    """The finish may wait: others hold jobs that wait for the operation."""
    seen: list[str] = []
    write_all, finish = _AsyncBatch._write_all, AsyncPostgresTransaction.finish

    async def look(connection: Any) -> None:
        [(setting,)] = await (await connection.execute("SHOW lock_timeout")).fetchall()
        seen.append(setting)

    async def written(batch: _AsyncBatch, request: BulkRequest, ids: Sequence[str], *more: Any) -> Any:
        await look(more[-1])
        return await write_all(batch, request, ids, *more)

    async def finished(transaction: AsyncPostgresTransaction, one: Finish, *, last: bool = False) -> FinishResult:
        await look(transaction.connection)
        return await finish(transaction, one, last=last)

    monkeypatch.setattr(_AsyncBatch, "_write_all", written)
    monkeypatch.setattr(AsyncPostgresTransaction, "finish", finished)
    dsn = make_conninfo(queue.dsn, options=f"-c lock_timeout={given}")
    async with AsyncClient(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
        await client.start_chain(work, 1)
        await client.start_bulk_operation("reprioritize", requested_by="ana", priority=1)
        assert await client.run_bulk_operations() == 1
    assert seen == [of_writes, f"{given}ms" if given else "0"]


async def test_only_a_lock_timeout_means_that_others_hold_a_chain(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = []

    async def write_all(batch: _AsyncBatch, request: BulkRequest, ids: Sequence[str], *more: Any) -> Any:
        writes.append(ids)
        raise StateUnavailableError("the server is going away")

    monkeypatch.setattr(_AsyncBatch, "_write_all", write_all)
    await queue.client.start_chain(work, 1)
    await queue.client.start_bulk_operation("cancel", requested_by="ana")
    with pytest.raises(StateUnavailableError, match="going away"):
        await queue.client.run_bulk_operations()
    assert len(writes) == 1


async def test_a_chain_whose_children_change_again_and_again_is_left_out(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = async_cascades.cancel_unheld

    async def cancel_unheld(store: Any, ids: Sequence[str], *more: Any, **named: Any) -> list[ChainUpdate]:
        if "changing" in ids:
            raise NotInStatusError("try again")
        return await before(store, ids, *more, **named)

    monkeypatch.setattr(async_bulk_runner, "cancel_unheld", cancel_unheld)
    await queue.client.start_chains([NewChain(work, 1, id=id) for id in ("a", "changing", "b")])
    assert counts(await queue.done("cancel")) == (COMPLETED, 3, 2, 1)
    assert await queue.statuses("changing") == [OPEN]


async def test_few_blockers_are_retried_with_a_chain_that_has_many(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are retried on their own pages; the inputs of the batches do not grow with them."""
    monkeypatch.setattr(async_bulk_runner, "BATCH", 1)
    monkeypatch.setattr(async_bulk_runner, "MAX_AHEAD", 3)
    await queue.client.start_chain(other, 1, id="parent")
    store = await queue.client._open_store()
    [job] = await store.claim(ask("other"))
    await store.finish([wait(job, *(NewJob(f"child-{number}", "work", "1") for number in range(10)))])
    await queue.fail_all("work", "other")
    before, reads = type(store).get_chains, list[str]()

    async def get_chains(store: Any, ids: Sequence[str], **named: Any) -> Any:
        reads.extend(ids)
        return await before(store, ids, **named)

    operation = await queue.client.start_bulk_operation("retry", requested_by="ana")
    monkeypatch.setattr(type(store), "get_chains", get_chains)
    assert await queue.client.run_bulk_operations(batches=1) == 1
    assert sum(id.startswith("child") for id in reads) == 10, "each is read once, without its input"
    [job] = await store.claim(ask(BULK_OPERATION_TYPE))
    assert "child" not in job.input
    done = await queue.client.get_bulk_operation(operation.id)
    assert (done.seen, done.changed) == (4, 4)


async def test_a_page_may_be_empty(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_bulk_runner, "BATCH", 1)
    await queue.client.start_chains([NewChain(work, 1) for _ in range(2)])
    await queue.fail_all("work")
    store = await queue.client._open_store()
    before, pages = type(store).list_chains, []

    async def list_chains(store: Any, *given: Any, **named: Any) -> Any:
        page = await before(store, *given, **named)
        pages.append(page)
        return page if len(pages) > 1 else Page((), page.next_cursor)

    monkeypatch.setattr(type(store), "list_chains", list_chains)
    assert counts(await queue.done("retry", runs=2)) == (COMPLETED, 1, 1, 0)
