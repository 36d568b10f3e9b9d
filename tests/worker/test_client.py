"""The clients sync and async: reading, waiting, results, and the caller's own transaction."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queuert import AsyncClient, Attempt, ChainStatus, Client, InProcessWorker, NewChain, Outcome, PostgresState
from queuert.errors import (
    ChainCancelledError,
    ChainNotFoundError,
    ClosedError,
    DefinitionError,
    JobFailedError,
    JobIdConflictError,
    JobNotFoundError,
    JobTypeMismatchError,
    StateUnavailableError,
    UnsupportedConnectionError,
    WaitTimeoutError,
)
from queuert.notify import Notification, NotifyAdapter, Subscription, Topic
from queuert.notify.in_process import InProcessNotify
from queuert.observability import Observers
from queuert.observability.events import AttemptStarted, ChainStarted
from tests.support.harness import PostgresHarness
from tests.support.job_types import JOB_TYPES, echo, number, text
from tests.support.waiting import START, WAIT, Gate, in_time, none_left

ROOT = Path(__file__).resolve().parents[2]


class Silence:
    """A notify adapter that never carries a notification."""

    healthy = False

    def open(self, observers: Observers) -> None:
        return

    def close(self) -> None:
        return

    def publish(self, topic: Topic, keys: Any) -> None:
        return

    def subscribe(self, topic: Topic, callback: Callable[[Notification], None]) -> Subscription:
        return self

    # The subscription is the adapter itself: closing it does nothing either.


class Liar(Silence):
    """One that says that notifications arrive, and none does."""

    healthy = True


async def test_results_of_every_finish(harness: PostgresHarness) -> None:
    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        outcomes: list[Outcome[int]] = [0, attempt.fail("failed on purpose"), attempt.cancel("not wanted")]
        return outcomes[attempt.input]

    chains = await harness.client.start_chains([NewChain(number, one) for one in range(3)])
    assert [chain.status for chain in chains] == [ChainStatus.OPEN] * 3
    async with harness.worker():
        closed = await harness.client.wait(chains, timeout=WAIT)
    assert [chain.status for chain in closed] == ["completed", "failed", "cancelled"]
    assert await closed[0].result() == 0
    with pytest.raises(JobFailedError, match="failed on purpose") as failed:
        await closed[1].result()
    assert failed.value.chain_id == chains[1].id
    with pytest.raises(ChainCancelledError, match="not wanted"):
        await closed[2].result()
    assert [chain.input for chain in closed] == [0, 1, 2]
    assert all(chain.closed_at and chain.created_at < chain.closed_at for chain in closed)


async def test_what_does_not_exist_is_a_typed_error(harness: PostgresHarness) -> None:
    with pytest.raises(ChainNotFoundError, match="'nowhere'"):
        await harness.client.get_chain("nowhere")
    with pytest.raises(JobNotFoundError, match="'nowhere'"):
        await harness.client.get_job("nowhere")
    chain = await harness.client.start_chain(number, 1)
    with pytest.raises(ChainNotFoundError):
        await harness.client.get_chains([chain, "nowhere"])
    with pytest.raises(DefinitionError, match="job_type must be a JobType, got 'text'"):
        await harness.client.get_chain(chain.id, "text")  # type: ignore[call-overload]
    with pytest.raises(JobTypeMismatchError, match="'number', not 'text'"):
        await harness.client.get_chain(chain.id, text)
    with pytest.raises(ChainNotFoundError, match="nowhere"):
        await harness.client.start_chain(number, 1, blockers=["nowhere"])
    assert harness.one("select count(*) from queuert.job") == 1


async def test_a_chosen_id_is_taken_once(harness: PostgresHarness) -> None:
    await harness.client.start_chain(number, 1, id="mine")
    with pytest.raises(JobIdConflictError) as raised:
        await harness.client.start_chains([NewChain(number, 2), NewChain(number, 3, id="mine")])
    assert raised.value.ids == ("mine",)
    assert harness.one("select count(*) from queuert.job") == 1


async def test_waiting_is_woken_by_a_notification(harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuert.client.async_waiting.POLL_WITH_NOTIFY", 3600.0)
    monkeypatch.setattr("queuert.client.async_waiting.POLL_WITHOUT_NOTIFY", 3600.0)
    gate = Gate()

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    async with harness.worker(concurrency=3):
        chains = await harness.client.start_chains([NewChain(number, one) for one in range(3)])
        waiting = asyncio.create_task(harness.client.wait(chains, timeout=WAIT))
        for _ in chains:
            await gate.next()
        gate.open()
        assert len(await in_time(waiting)) == 3


@pytest.mark.parametrize("notify", [Silence, Liar, InProcessNotify])
async def test_without_notifications_everything_works_later(
    harness: PostgresHarness, notify: Callable[[], NotifyAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuert.client.async_waiting.POLL_WITH_NOTIFY", 0.2)
    monkeypatch.setattr("queuert.worker.claimer.POLL_WITH_NOTIFY", 0.2)
    harness.handles(number, echo)
    deaf = AsyncClient(harness.state, JOB_TYPES, notify=notify(), observability=harness.log)
    worker = InProcessWorker(AsyncClient(harness.state, JOB_TYPES, notify=notify()), harness.processors)
    async with deaf, worker:
        for value in range(3):
            chain = await deaf.start_chain(number, value)
            assert await chain.result(WAIT) == value


async def test_a_wait_that_takes_too_long(harness: PostgresHarness) -> None:
    chains = await harness.client.start_chains([NewChain(number, one) for one in range(3)])
    with pytest.raises(WaitTimeoutError) as raised:
        await harness.client.wait(chains, timeout=0.05)
    assert set(raised.value.open_ids) == {chain.id for chain in chains}
    with pytest.raises(TimeoutError):
        await chains[0].result(0)


async def test_waiting_for_nothing_and_for_one_chain_twice(harness: PostgresHarness) -> None:
    assert await harness.client.wait([], timeout=0) == []
    harness.handles(number, echo)
    chain = await harness.client.start_chain(number, 4)
    async with harness.worker():
        assert [one.id for one in await harness.client.wait([chain, chain], timeout=WAIT)] == [chain.id, chain.id]


async def test_waiting_for_many(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    chains = await harness.client.start_chains([NewChain(number, one) for one in range(1_500)])
    async with harness.worker(concurrency=50):
        closed = await harness.client.wait(chains, timeout=WAIT)
    assert [await chain.result() for chain in closed] == list(range(1_500))


async def test_waiting_for_a_chain_that_is_deleted(harness: PostgresHarness) -> None:
    chain = await harness.client.start_chain(number, 1)
    waiting = asyncio.create_task(chain.wait(WAIT))
    harness.rows("delete from queuert.job")
    harness.client.notify.publish(Topic.CHAINS, [chain.id])
    with pytest.raises(ChainNotFoundError):
        await in_time(waiting)


async def test_a_cancelled_wait_leaves_nothing(harness: PostgresHarness) -> None:
    chain = await harness.client.start_chain(number, 1)
    waiting = asyncio.create_task(chain.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


# --- the caller's transaction -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("finish", ["commit", "rollback"])
async def test_a_start_stands_or_falls_with_the_callers_transaction(harness: PostgresHarness, finish: str) -> None:
    harness.handles(number, echo)
    async with (
        harness.worker(poll_interval=3600.0),
        await psycopg.AsyncConnection.connect(harness.dsn) as connection,
    ):
        await (await harness.client.start_chain(number, 0)).result(WAIT)
        chain = await harness.client.start_chain(number, 1, id="inside", connection=connection)
        assert harness.log.of(ChainStarted, chain_id="inside")[0].in_callers_transaction
        with pytest.raises(ChainNotFoundError):
            await harness.client.get_chain("inside")
        if finish == "commit":
            await connection.commit()
            assert await chain.result(WAIT) == 1
        else:
            await connection.rollback()
            assert await (await harness.client.start_chain(number, 2)).result(WAIT) == 2
            with pytest.raises(ChainNotFoundError):
                await chain.result(WAIT)
            assert harness.log.of(AttemptStarted, job_id="inside") == []


async def test_a_conflict_does_not_spoil_the_callers_transaction(harness: PostgresHarness) -> None:
    await harness.client.start_chain(number, 1, id="taken")
    async with await psycopg.AsyncConnection.connect(harness.dsn) as connection:
        await connection.execute("create table business (x int)")
        with pytest.raises(JobIdConflictError):
            await harness.client.start_chain(number, 1, id="taken", connection=connection)
        await connection.execute("insert into business values (1)")
        await harness.client.start_chain(number, 1, id="free", connection=connection)
    assert harness.one("select count(*) from business") == 1
    assert harness.one("select count(*) from queuert.job") == 2


async def test_a_connection_of_the_wrong_kind_is_refused(harness: PostgresHarness) -> None:
    with psycopg.connect(harness.dsn) as connection:
        wrong: Any
        for wrong in (connection, object(), "dsn", 1):
            with pytest.raises(UnsupportedConnectionError):
                await harness.client.start_chain(number, 1, connection=wrong)
    assert harness.one("select count(*) from queuert.job") == 0


# --- life -------------------------------------------------------------------------------------------------------------


async def test_a_closed_client_says_so(harness: PostgresHarness) -> None:
    client = AsyncClient(harness.state, JOB_TYPES, observability=harness.log)
    chain = await client.start_chain(number, 1)
    await client.aclose()
    await client.aclose()
    for use in (
        lambda: client.start_chain(number, 1),
        lambda: client.get_chain(chain.id),
        lambda: client.get_job(chain.id),
        lambda: client.wait([chain]),
        lambda: chain.refresh(),
        lambda: client.open(),
    ):
        with pytest.raises(ClosedError):
            await use()


async def test_a_client_opened_by_many_at_once_opens_once(harness: PostgresHarness) -> None:
    client = AsyncClient(harness.state, JOB_TYPES, observability=harness.log)
    chains = await asyncio.gather(*(client.start_chain(number, one) for one in range(20)))
    assert len({chain.id for chain in chains}) == 20
    await client.aclose()


async def test_a_database_out_of_reach_is_a_typed_error() -> None:
    client = AsyncClient(PostgresState("postgresql://127.0.0.1:1/x"), JOB_TYPES)
    with pytest.raises(StateUnavailableError):
        await client.start_chain(number, 1)
    await client.aclose()


# --- the synchronous twin ---------------------------------------------------------------------------------------------


def test_a_synchronous_client_serves_many_threads(dsn: str) -> None:
    with Client(PostgresState(dsn), JOB_TYPES) as client, ThreadPoolExecutor(16) as threads:
        chains = list(threads.map(lambda value: client.start_chain(number, value), range(100)))
        read = list(threads.map(lambda chain: client.get_chain(chain.id), chains))
        assert [chain.input for chain in read] == list(range(100))


def test_a_synchronous_client_opened_by_many_threads_at_once(dsn: str) -> None:
    client, barrier = Client(PostgresState(dsn), JOB_TYPES), threading.Barrier(8)

    def start(value: int) -> str:
        barrier.wait(WAIT)
        return client.start_chain(number, value).id

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(start, range(8)))) == 8
    client.close()
    count = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    with psycopg.connect(dsn, autocommit=True) as look:
        asyncio.run(none_left(lambda: [row for row in look.execute(count).fetchall() if row != (0,)], "connections"))


async def test_a_worker_shares_a_synchronous_client(harness: PostgresHarness) -> None:
    client = Client(harness.state, JOB_TYPES, observability=harness.log)
    harness.handles(number, echo)

    def use() -> int:
        with client:
            return client.start_chain(number, 5).result(WAIT)

    async with InProcessWorker(client, harness.processors):
        assert await asyncio.to_thread(use) == 5
    with pytest.raises(ClosedError):
        client.start_chain(number, 1)


@pytest.mark.timeout(2 * START)
def test_a_forked_child_uses_connections_of_its_own(dsn: str) -> None:
    done = subprocess.run(
        # Since 3.12 Python warns of every fork beside threads: that is what is tried here.
        [
            sys.executable,
            "-W",
            "error::ResourceWarning",
            "-W",
            "ignore::DeprecationWarning",
            "-m",
            "tests.worker.forking",
        ],
        cwd=ROOT,
        env={**os.environ, "QUEUERT_URL": dsn},
        capture_output=True,
        text=True,
        timeout=START,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["child:", "well", "parent:", "well"]), done.stderr
    assert done.stderr == ""
