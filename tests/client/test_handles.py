"""Handles of chains: what they show, when they read, and how they follow their chain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from queuert import (
    AsyncClient,
    Attempt,
    ChainStatus,
    Client,
    InProcessWorker,
    JobStatus,
    JobType,
    JobTypes,
    NewChain,
    Outcome,
    PostgresState,
    Processors,
    after,
)
from queuert.errors import ChainNotFoundError, ChainNotReadError, ConfigurationError, WaitTimeoutError
from queuert.jobs import ChainState
from queuert.notify.adapter import Topic
from queuert.state.adapter import StateAdapter
from tests.support.waiting import WAIT, Gate, in_time


class Order(BaseModel):
    number: int
    note: str = "no note"


class Receipt(BaseModel):
    total: int


pay = JobType("pay", input=int, output=Receipt)
order = JobType("order", input=Order, continues_with=pay)
JOB_TYPES = JobTypes(order, pay)


@pytest.fixture
async def client(state: StateAdapter) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(state, JOB_TYPES) as client:
        yield client


def processors_of(gate: Gate | None = None) -> Processors:
    processors = Processors(JOB_TYPES)

    @processors.handles(order)
    async def order_handler(attempt: Attempt[Order, Receipt]) -> Outcome[Receipt]:
        attempt.record_progress(1, 4, message="checked")
        if gate is not None:
            await gate.pass_through(attempt)
        return attempt.continue_with(pay, attempt.input.number)

    @processors.handles(pay)
    async def pay_handler(attempt: Attempt[int, Receipt]) -> Outcome[Receipt]:
        return Receipt(total=attempt.input)

    return processors


# --- what a handle shows ----------------------------------------------------------------------------------------------


async def test_the_handle_of_a_start_shows_what_was_written(client: AsyncClient) -> None:
    """Without reading: the input as it is stored, and the time of the store's clock."""
    chain = await client.start_chain(order, Order(number=7), attributes={"user": 17})
    assert (chain.status, chain.input, chain.attributes) == (
        ChainStatus.OPEN, Order(number=7, note="no note"), {"user": "17"}
    )  # fmt: skip
    assert (chain.output, chain.error, chain.closed_at, chain.expires_at) == (None, None, None, None)
    found = await client.get_chain(chain.id)
    assert (found.created_at, found.input, found.attributes) == (chain.created_at, chain.input, chain.attributes)


async def test_handles_of_many_starts_show_their_own_inputs(client: AsyncClient) -> None:
    """Also of so many that the first are sent while the others are encoded."""
    chains = await client.start_chains([NewChain(pay, number) for number in range(600)])
    assert [chain.input for chain in chains] == list(range(600))
    assert chains[599].created_at == (await client.get_chain(chains[599].id)).created_at


async def test_the_handle_of_a_duplicate_knows_only_what_the_start_returned(client: AsyncClient) -> None:
    first = await client.start_chain(pay, 1, id="mine")
    await first.complete(Receipt(total=5))
    again = await client.start_chain(pay, 2, id="mine", attach=True)
    assert (again.deduplicated, again.status, again.created_at) == (True, ChainStatus.COMPLETED, first.created_at)
    for name in ("input", "output", "error", "closed_at", "expires_at", "attributes"):
        with pytest.raises(ChainNotReadError, match=rf"'mine' was a duplicate: call refresh\(\).* reading its {name}"):
            getattr(again, name)
    assert await again.refresh() is again
    assert (again.input, again.output, again.deduplicated) == (1, Receipt(total=5), True)


async def test_waiting_updates_the_handle(client: AsyncClient) -> None:
    """The same object; that of ``client.wait`` too, and before a timeout those of the chains that have closed."""
    async with InProcessWorker(client, processors_of()):
        chain = await client.start_chain(order, Order(number=3))
        assert await chain.wait(timeout=WAIT) is chain
        assert (chain.status, chain.output, chain.error) == (ChainStatus.COMPLETED, Receipt(total=3), None)
        assert chain.closed_at is not None
        assert chain.closed_at >= chain.created_at
        other = await client.start_chain(pay, 4)
        assert await other.result(timeout=WAIT) == Receipt(total=4)
        assert other.output == Receipt(total=4)
        third, late = await client.start_chain(pay, 5), await client.start_chain(pay, 6, run_at=after(hours=1))
        await (await client.get_chain(third.id)).wait(timeout=WAIT)
        with pytest.raises(WaitTimeoutError):
            await client.wait([third, late], timeout=0)
        assert (third.status, late.status) == (ChainStatus.COMPLETED, ChainStatus.OPEN)
        assert await client.wait([third, other]) == [third, other]


async def test_jobs_of_a_chain(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, in order, over pages."""
    monkeypatch.setattr("queuert.client.async_chain._PAGE", 1)
    async with InProcessWorker(client, processors_of()):
        chain = await (await client.start_chain(order, Order(number=3))).wait(timeout=WAIT)
    assert [(job.type, job.status) for job in await chain.jobs()] == [
        ("order", JobStatus.CONTINUED), ("pay", JobStatus.COMPLETED)
    ]  # fmt: skip


async def test_cancel_updates_the_handle(client: AsyncClient) -> None:
    chain = await client.start_chain(pay, 1)
    assert await chain.cancel(reason="withdrawn")
    assert (chain.status, chain.error and chain.error.message) == (ChainStatus.CANCELLED, "withdrawn")
    assert not await chain.cancel()
    await client.delete_chain(chain)
    with pytest.raises(ChainNotFoundError):
        await chain.refresh()


def test_in_a_transaction_of_the_caller_the_handle_waits_for_the_commit(dsn: str) -> None:
    with Client(PostgresState(dsn), JOB_TYPES) as client, psycopg.connect(dsn) as connection:
        first, second = client.start_chain(pay, 1), client.start_chain(pay, 2)
        assert first.cancel(connection=connection)
        second.complete(Receipt(total=9), connection=connection)
        assert (first.status, second.status) == (ChainStatus.OPEN, ChainStatus.OPEN)
        connection.commit()
        assert (first.refresh().status, second.refresh().output) == (ChainStatus.CANCELLED, Receipt(total=9))


# --- watch ------------------------------------------------------------------------------------------------------------


def shown(state: ChainState) -> tuple[Any, ...]:
    return state.status, state.job_type, state.job_status, state.attempt


async def test_watch_yields_each_change_until_the_chain_is_closed(client: AsyncClient) -> None:
    """Steps and progress too; then the handle is up to date."""
    gate = Gate()
    seen: list[ChainState] = []
    chain = await client.start_chain(order, Order(number=3))
    states = chain.watch(interval=0.01, timeout=WAIT)
    seen.append(await anext(states))
    assert shown(seen[0]) == (ChainStatus.OPEN, "order", JobStatus.READY, 0)
    async with InProcessWorker(client, processors_of(gate)):
        await gate.next()
        async for state in states:
            seen.append(state)
            if state.progress is not None:
                gate.open()
    assert shown(seen[-1]) == (ChainStatus.COMPLETED, "pay", JobStatus.COMPLETED, 1)
    assert all(one != other for one, other in pairwise(seen))
    [progress] = {state.progress for state in seen if state.progress is not None}
    assert (progress.done, progress.total, progress.message) == (1, 4, "checked")
    assert chain.output == Receipt(total=3)


async def test_a_notification_ends_a_watch(client: AsyncClient) -> None:
    """However long the interval is."""
    chain = await client.start_chain(pay, 1)
    states = chain.watch(interval=3600, timeout=WAIT)
    assert (await anext(states)).status is ChainStatus.OPEN
    await (await client.get_chain(chain.id)).cancel()
    if not client.notify.healthy:  # SQLite without a listener: as the client that cancels has told it.
        client.notify.publish(Topic.CHAINS, [chain.id])
    assert [state.status async for state in states] == [ChainStatus.CANCELLED]


async def test_a_watch_that_is_left_early_leaves_nothing_behind(client: AsyncClient) -> None:
    chain = await client.start_chain(pay, 1)
    states = chain.watch()
    await anext(states)
    await states.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(states)
    await chain.cancel()
    assert [state.status async for state in chain.watch()] == [ChainStatus.CANCELLED], "closed already"


async def test_a_watch_reads_no_inputs(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = await client.start_chain(pay, 1)
    store: Any = await client._open_store()
    read: list[str] = []
    for name in ("get_chains", "closed_chains", "get_jobs"):
        monkeypatch.setattr(store, name, lambda *_, name=name, **__: read.append(name), raising=False)
    with pytest.raises(WaitTimeoutError):
        async for _ in chain.watch(interval=0.001, timeout=0.02):
            pass
    assert read == []


async def test_a_watch_of_what_does_not_exist_or_with_a_wrong_interval(client: AsyncClient) -> None:
    with pytest.raises(ChainNotFoundError):
        await anext(client.watch_chain("unknown"))
    with pytest.raises(ConfigurationError, match="interval must be above 0 seconds, got 0"):
        await anext(client.watch_chain("unknown", interval=0))


def test_a_sync_watch(state: StateAdapter) -> None:
    with Client(state, JOB_TYPES) as client:
        chain = client.start_chain(pay, 1)
        seen = []
        for one in chain.watch(interval=0.01, timeout=WAIT):
            seen.append(one.status)
            if one.status is ChainStatus.OPEN:
                client.complete_chain(chain, Receipt(total=2))
        assert seen == [ChainStatus.OPEN, ChainStatus.COMPLETED]
        assert chain.output == Receipt(total=2)


# --- a wait that times out --------------------------------------------------------------------------------------------


async def test_a_timeout_says_where_the_chains_are(client: AsyncClient) -> None:
    """Of the first five; with their last errors, but not more than a line of each."""
    processors = Processors(JOB_TYPES)

    @processors.handles(pay)
    async def fails(attempt: Attempt[int, Receipt]) -> Outcome[Receipt]:
        raise OSError("the bank is closed\nuntil Monday")

    broken = await client.start_chain(pay, 1)
    async with InProcessWorker(client, processors):
        async for state in broken.watch(interval=0.01, timeout=WAIT):
            if state.last_error is not None:
                break
    later = await client.start_chain(pay, 2, run_at=after(days=1))
    blocked = await client.start_chain(pay, 3, blockers=[later])
    others = [await client.start_chain(pay, number) for number in range(4)]
    with pytest.raises(WaitTimeoutError) as caught:
        await client.wait([broken, later, blocked, *others], timeout=0)
    message = str(caught.value)
    assert message.startswith("7 chain(s) are still open after 0 seconds: ")
    assert f"{broken.id!r} (job of type 'pay' is scheduled for 20" in message
    assert "UTC, attempt 1, last error: OSError: the bank is closed), " in message
    assert f"{later.id!r} (job of type 'pay' is scheduled for 20" in message
    assert f"{blocked.id!r} (job of type 'pay' is blocked by 1 open chain(s))" in message
    assert f"{others[0].id!r} (job of type 'pay' is ready)" in message
    assert message.endswith(" ...")
    assert caught.value.reasons == {}
    assert [state.id for state in caught.value.states] == [broken.id, later.id, blocked.id, others[0].id, others[1].id]
    await client.pause_job_types([pay])
    with pytest.raises(WaitTimeoutError) as caught_later:
        await client.wait([others[0], later, blocked, broken], timeout=0.001)
    reasons = caught_later.value.reasons
    assert list(reasons) == [others[0].id, later.id, blocked.id]
    assert reasons[others[0].id].startswith("type pay is paused since ")
    assert "is scheduled for 20" in reasons[later.id]
    assert reasons[blocked.id].startswith("waits for 1 open chain; type pay is paused since ")
    assert str(caught_later.value).endswith("".join(f"\n  {id}: {reason}" for id, reason in reasons.items()))
    with pytest.raises(WaitTimeoutError, match="job of type 'pay' is scheduled for"):
        await in_time(asyncio.create_task(anext_closed(client, later.id)))


async def anext_closed(client: AsyncClient, id: str) -> None:
    async for _ in client.watch_chain(id, timeout=0):
        pass
