"""What a client does to chains from outside, and how the handlers that run them learn of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import psycopg
import pytest

from queuert import (
    AsyncClient,
    ChainStatus,
    Client,
    JobStatus,
    JobType,
    JobTypes,
    NewChain,
    PostgresState,
    after,
)
from queuert.errors import (
    BlockerReferenceError,
    ChainAlreadyClosedError,
    ChainCancelledError,
    ChainNotFoundError,
    ChainNotRetriableError,
    ConfigurationError,
    DefinitionError,
    InvalidIdentifierError,
    JobIdConflictError,
    JobNotFoundError,
    JobNotTriggerableError,
    JobTypeMismatchError,
    NotInStatusError,
    PayloadError,
    UndeclaredContinuationError,
    UnknownJobTypeError,
)
from queuert.notify.in_process import InProcessNotify
from queuert.observability.events import (
    ChainClosed,
    ChainContinued,
    ChainRetried,
    ChainsDeleted,
    JobsTriggered,
)
from queuert.state.types import ChainUpdate
from queuert.testing.events import EventLog
from tests.support.job_types import number
from tests.support.waiting import WAIT, in_time, until

publish = JobType("publish", input=str, output=int)
approve: JobType[str, int] = JobType("approve", input=str, output=int, continues_with=publish)
order: JobType[str, int] = JobType("order", input=str, continues_with=(approve, publish))
JOB_TYPES = JobTypes(order, approve, publish)


@pytest.fixture
def log() -> EventLog:
    return EventLog()


@pytest.fixture
def client(dsn: str, log: EventLog) -> Iterator[Client]:
    with Client(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify(), observability=log) as client:
        yield client


@pytest.fixture
async def async_client(dsn: str, log: EventLog) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify(), observability=log) as client:
        yield client


def status_of(client: Client, job_id: str) -> JobStatus:
    return client.get_job(job_id).status


# --- without workers --------------------------------------------------------------------------------------------------


def test_an_approval_leads_a_chain_to_its_end(client: Client, log: EventLog) -> None:
    chain = client.start_chain(order, "tea", priority=3)
    step = client.continue_chain(chain, approve, "tea?", expecting=order)
    assert (client.get_job(step).chain_id, client.get_job(step).priority) == (chain.id, 3)
    wrong: Any = "approve"
    with pytest.raises(DefinitionError, match="expecting must be a JobType, got 'approve': pass"):
        client.continue_chain(chain, publish, "tea!", expecting=wrong)
    with pytest.raises(DefinitionError, match="expecting must be a JobType, got 'approve': pass"):
        client.complete_chain(chain, 5, expecting=wrong)
    with pytest.raises(ConfigurationError, match="reason must be a string, got int"):
        client.cancel_chain(chain, reason=cast(Any, 5))
    with pytest.raises(PayloadError, match="output of job type 'approve'"):
        client.continue_chain(chain, publish, "tea!", output="five", expecting=approve)
    last = client.continue_chain(
        chain.id, publish, "tea!", id="last", priority=5, run_at=after(hours=1), output=5, expecting=approve
    )
    assert (last, client.get_job("last").priority, status_of(client, "last")) == ("last", 5, JobStatus.SCHEDULED)
    client.complete_chain(chain, 7, expecting=publish)
    assert chain.result(timeout=WAIT) == 7
    assert (client.get_job(step).output, client.get_job(chain.id).output) == (5, None)
    [one, two] = log.of(ChainContinued, chain_id=chain.id, type="order")
    assert (one.next_job_id, two.next_job_id, two.next_type) == (step, "last", "publish")
    [closed] = log.of(ChainClosed, chain_id=chain.id, type="order", status=ChainStatus.COMPLETED)
    record = client.get_chain(chain.id)
    assert record.closed_at is not None
    assert record.created_at is not None
    assert closed.duration is not None
    assert abs(closed.duration - (record.closed_at - record.created_at).total_seconds()) < 1e-4


def test_completing_at_once(client: Client) -> None:
    """An early end of a job that has not begun: by its handle or id, scheduled and blocked ones too."""
    first = client.start_chain(publish, "x")
    later = client.start_chain(publish, "x", run_at=after(hours=1))
    blocked = client.start_chain(publish, "x", blockers=[first])
    for value, chain in enumerate((blocked, later, first)):
        client.complete_chain(chain.id, value)
        assert chain.result(timeout=WAIT) == value
        assert client.get_job(chain.id).holder is None


def test_what_cannot_be_completed(client: Client) -> None:
    chain = client.start_chain(order, "tea")
    waiting = client.start_chain(approve, "tea?")
    with pytest.raises(PayloadError, match="order"):
        client.complete_chain(chain, 1)
    with pytest.raises(PayloadError, match="output"):
        client.complete_chain(waiting, "no number")  # type: ignore[misc]
    with pytest.raises(
        JobTypeMismatchError, match="must be at a job of type 'publish', and is at one of type 'approve'"
    ):
        client.complete_chain(waiting, 1, expecting=publish)
    with pytest.raises(ChainNotFoundError, match="nowhere"):
        client.complete_chain("nowhere", 1)
    with pytest.raises(InvalidIdentifierError):
        client.complete_chain("", 1)
    assert status_of(client, chain.id) is status_of(client, waiting.id) is JobStatus.READY
    client.complete_chain(waiting, 1)
    with pytest.raises(ChainAlreadyClosedError) as raised:
        client.complete_chain(waiting, 2)
    assert (raised.value.chain_id, raised.value.status) == (waiting.id, "completed")
    assert waiting.result(timeout=WAIT) == 1


def test_what_cannot_be_continued(client: Client, dsn: str) -> None:
    chain = client.start_chain(approve, "tea")
    with pytest.raises(UndeclaredContinuationError, match="'approve' continues with 'publish', got"):
        client.continue_chain(chain, order, "again")
    with pytest.raises(PayloadError, match="input"):
        client.continue_chain(chain, publish, 5)  # type: ignore[misc]
    with pytest.raises(UnknownJobTypeError):
        client.continue_chain(chain, number, 5)
    with pytest.raises(ConfigurationError, match="priority"):
        client.continue_chain(chain, publish, "x", priority=10**9)
    with pytest.raises(JobTypeMismatchError):
        client.continue_chain(chain, publish, "x", expecting=order)
    for taken in (chain.id, other_chain(client)):
        with pytest.raises(JobIdConflictError):
            client.continue_chain(chain, publish, "x", id=taken)
    with pytest.raises(ConfigurationError, match="must not contain its own chain"):
        client.continue_chain(chain, publish, "x", blockers=[chain])
    with pytest.raises(ChainNotFoundError, match="nowhere"):
        client.continue_chain(chain, publish, "x", blockers=["nowhere"])
    assert status_of(client, chain.id) is JobStatus.READY
    client.cancel_chain(chain)
    with pytest.raises(ChainAlreadyClosedError, match="already cancelled"):
        client.continue_chain(chain, publish, "x")
    with Client(PostgresState(dsn), JobTypes(publish)) as other, pytest.raises(UnknownJobTypeError, match="approve"):
        other.complete_chain(other_chain(client), 1)


def other_chain(client: Client) -> str:
    return client.start_chain(approve, "tea").id


def test_a_continuation_waits_for_its_blockers(client: Client) -> None:
    blocker, chain = client.start_chains([NewChain(publish, "first"), NewChain(approve, "second")])
    step = client.continue_chain(chain, publish, "x", blockers=[blocker])
    assert status_of(client, step) is JobStatus.BLOCKED
    client.complete_chain(blocker, 1)
    assert status_of(client, step) is JobStatus.READY


def test_a_chain_that_goes_on_while_it_is_completed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the client has read is old by the time it writes: it reads again, and gives up when that never ends."""
    chain = client.start_chain(order, "tea")
    store = client._open_store()
    real, calls = store.complete_chains, 0

    def late(completions: Any, **others: Any) -> list[ChainUpdate]:
        nonlocal calls
        calls += 1
        if calls == 1:
            step = client.get_chain(chain.id)
            assert step.status is ChainStatus.OPEN
            monkeypatch.setattr(store, "complete_chains", real)
            client.continue_chain(chain, publish, "moved on")
            monkeypatch.setattr(store, "complete_chains", late)
        return real(completions, **others)

    monkeypatch.setattr(store, "complete_chains", late)
    with pytest.raises(UndeclaredContinuationError, match="'publish' continues with nothing"):
        client.continue_chain(chain, approve, "too late")
    client.complete_chain(chain, 4)
    assert calls == 2

    restless = client.start_chain(publish, "x")
    met = ChainUpdate("x", "publish", ChainStatus.OPEN, "y", "publish", JobStatus.READY, written=False)
    monkeypatch.setattr(store, "complete_chains", lambda completions, **_: [met])
    with pytest.raises(NotInStatusError, match="try again"):
        client.complete_chain(restless, 1)


def test_cancelling(client: Client, log: EventLog) -> None:
    chains = client.start_chains([NewChain(publish, "x") for _ in range(3)])
    assert client.cancel_chain(chains[1], reason="not \0 wanted")
    assert client.cancel_chains([chains[0], chains[1].id, chains[0], chains[2]]) == [True, False, True]
    with pytest.raises(ChainCancelledError, match=r"not .* wanted"):
        chains[1].result(timeout=WAIT)
    with pytest.raises(ChainCancelledError, match="cancelled by the client"):
        chains[0].result(timeout=WAIT)
    assert len(log.of(ChainClosed, status=ChainStatus.CANCELLED, in_callers_transaction=False)) == 3
    with pytest.raises(ChainNotFoundError, match="nowhere"):
        client.cancel_chains([client.start_chain(publish, "y"), "nowhere"])
    assert client.cancel_chains([]) == []


def test_retrying(client: Client, log: EventLog) -> None:
    chain, open_one = client.start_chains([NewChain(publish, "x"), NewChain(publish, "y")])
    client.cancel_chain(chain)
    with pytest.raises(ChainNotRetriableError, match="is open"):
        client.retry_chains([chain, open_one])
    assert status_of(client, chain.id) is JobStatus.CANCELLED
    client.retry_chain(chain)
    assert status_of(client, chain.id) is JobStatus.READY
    assert log.of(ChainRetried, chain_id=chain.id, type="publish")
    client.retry_chains([])


def test_triggering(client: Client, log: EventLog) -> None:
    chain, running = (client.start_chain(publish, "x", run_at=after(hours=1)) for _ in range(2))
    client.cancel_chain(running)
    with pytest.raises(JobNotTriggerableError, match="cancelled"):
        client.trigger_jobs([chain.id, running.id])
    with pytest.raises(JobNotFoundError):
        client.trigger_job("nowhere")
    with pytest.raises(InvalidIdentifierError, match="got a string"):
        client.trigger_jobs(chain.id)
    assert status_of(client, chain.id) is JobStatus.SCHEDULED
    client.trigger_job(chain.id)
    assert status_of(client, chain.id) is JobStatus.READY
    client.trigger_jobs([])
    assert [event.count for event in log.of(JobsTriggered)] == [1]


def test_deleting(client: Client, log: EventLog) -> None:
    blocker = client.start_chain(publish, "first")
    chain = client.start_chain(order, "second", blockers=[blocker])
    with pytest.raises(BlockerReferenceError) as raised:
        client.delete_chain(blocker)
    assert raised.value.references == ((blocker.id, chain.id),)
    assert client.delete_chains([chain, "nowhere"], cascade=True) == [chain.id, blocker.id]
    with pytest.raises(ChainNotFoundError):
        chain.refresh()
    assert client.delete_chain(chain) is False
    assert client.delete_chain(client.start_chain(publish, "third")) is True
    assert [event.count for event in log.of(ChainsDeleted)] == [2, 1]


def test_in_the_callers_transaction(client: Client, dsn: str, log: EventLog) -> None:
    """Each joins the caller's transaction: gone with a rollback, there with a commit."""

    def operations() -> list[tuple[Callable[[Any], Any], str]]:
        ids = [client.start_chain(approve, "x", run_at=after(hours=1)).id for _ in range(6)]
        client.cancel_chain(ids[3])
        return [
            (lambda connection: client.complete_chain(ids[0], 1, connection=connection), ids[0]),
            (lambda connection: client.continue_chain(ids[1], publish, "x", connection=connection), ids[1]),
            (lambda connection: client.cancel_chain(ids[2], connection=connection), ids[2]),
            (lambda connection: client.retry_chain(ids[3], connection=connection), ids[3]),
            (lambda connection: client.trigger_job(ids[4], connection=connection), ids[4]),
            (lambda connection: client.delete_chain(ids[5], connection=connection), ids[5]),
        ]

    wanted = ["completed", "continued", "cancelled", "ready", "ready", None]
    for (operation, id), status in zip(operations(), wanted, strict=True):
        before = status_of(client, id)
        with psycopg.connect(dsn) as connection:
            operation(connection)
            assert status_of(client, id) is before
            connection.rollback()
            assert status_of(client, id) is before
            operation(connection)
        found = client._open_store().get_jobs([id])[0]
        assert (found and found.status.value) == status
    assert {event.in_callers_transaction for event in log.of(ChainContinued)} == {True}


async def test_both_modes(async_client: AsyncClient) -> None:
    chain = await async_client.start_chain(order, "tea", run_at=after(hours=1))
    await async_client.trigger_job(chain.id)
    await async_client.continue_chain(chain, approve, "tea?")
    await async_client.complete_chain(chain, 3, expecting=approve)
    assert await chain.result(timeout=WAIT) == 3
    other = await async_client.start_chain(publish, "x", blockers=[chain])
    assert await async_client.cancel_chain(other)
    await async_client.retry_chain(other)
    assert (await async_client.get_job(other.id)).status is JobStatus.READY
    assert await async_client.delete_chain(other, cascade=True)
    with pytest.raises(ChainNotFoundError):
        await chain.refresh()


async def test_a_waiter_is_woken(async_client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a completion, a cancel, and a deletion, without a look of its own."""
    monkeypatch.setattr("queuert.client.async_waiting.POLL_WITH_NOTIFY", 3600.0)
    chains = await async_client.start_chains([NewChain(publish, "x") for _ in range(3)])
    waiting = [asyncio.create_task(chain.wait(WAIT)) for chain in chains]
    subscribed: Any = async_client.notify._subscribers  # type: ignore[attr-defined]
    await until(lambda: len(subscribed._subscriptions.get("chains", ())) == 3, "three wait")
    await async_client.complete_chain(chains[0], 1)
    await async_client.cancel_chain(chains[1])
    await async_client.delete_chain(chains[2])
    assert [(await in_time(task)).status.value for task in waiting[:2]] == ["completed", "cancelled"]
    with pytest.raises(ChainNotFoundError):
        await in_time(waiting[2])
