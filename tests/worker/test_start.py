"""Starting and stopping an idle worker, at any moment, in any order, twice."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest

from queuert import AsyncClient, Attempt, InProcessWorker, Outcome, PostgresState
from queuert.errors import ClosedError, RunningEventLoopError, SchemaMissingError, StateUnavailableError
from queuert.notify import InProcessNotify
from queuert.notify.adapter import Notification, Topic
from queuert.observability.events import (
    WorkerStarted,
    WorkerStopped,
)
from queuert.state import AsyncStore
from queuert.worker.bulk_runner import BulkOperationRunner
from queuert.worker.claimer import Claimer
from queuert.worker.completer import Completer
from queuert.worker.heartbeat import Heartbeat
from queuert.worker.leases import LeaseRenewer
from queuert.worker.loop_watch import LoopWatch
from queuert.worker.schedule_runner import ScheduleRunner
from queuert.worker.threads import HandlerThreads
from tests.support.harness import PostgresHarness
from tests.support.job_types import JOB_TYPES, echo, number
from tests.support.waiting import WAIT, Gate, in_time, none_left


async def held_leases(harness: PostgresHarness) -> int:
    count: int = harness.one("select count(*) from queuert.job where lease_expires_at is not null")
    return count


async def test_stop_before_start(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    worker = harness.worker()
    await in_time(worker.stop())
    await in_time(worker.start())
    assert harness.log.of(WorkerStarted) == []
    await in_time(worker.stop())
    assert (worker.running, worker.abandoned) == (0, 0)


async def test_stop_while_it_starts(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    worker = harness.worker()
    starting = asyncio.create_task(worker.start())
    await asyncio.sleep(0)
    await in_time(worker.stop())
    await in_time(starting)
    assert harness.log.of(WorkerStarted) == []


async def test_a_start_without_notifications_may_be_repeated(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.handles(number, echo)
    worker, opened = harness.worker(), harness.client.notify.open

    def no_thread(observers: object) -> None:
        raise RuntimeError("can't start new thread")

    await harness.client.open()
    monkeypatch.setattr(harness.client.notify, "open", no_thread)
    with pytest.raises(RuntimeError, match="new thread"):
        await in_time(worker.start())
    assert harness.one("select count(*) from queuert.worker") == 0
    monkeypatch.setattr(harness.client.notify, "open", opened)
    chain = await harness.client.start_chain(number, 7)
    await in_time(worker.start())
    assert await chain.result(WAIT) == 7
    await in_time(worker.stop())


PARTS = (LeaseRenewer, LoopWatch, Completer, BulkOperationRunner, ScheduleRunner, Claimer)


async def test_a_stop_after_a_start_that_failed_does_not_stop_the_next_one(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a program that stops in a ``finally``: the second start returned, and nothing ran."""
    harness.handles(number, echo)
    worker = harness.worker()
    await harness.client.open()
    with monkeypatch.context() as patch:
        patch.setattr(harness.client.notify, "open", Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="new thread"):
            await in_time(worker.start())
    await in_time(worker.stop())
    chain = await harness.client.start_chain(number, 7)
    await in_time(worker.start())
    assert await chain.result(WAIT) == 7
    await in_time(worker.stop())


async def test_a_start_that_is_cancelled_after_its_heartbeat_was_written_is_not_listed(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, recorded = Heartbeat.record_first, asyncio.Event()

    async def and_waits(heartbeat: Heartbeat, store: Any) -> None:
        await record(heartbeat, store)
        recorded.set()
        await asyncio.Event().wait()

    harness.handles(number, echo)
    monkeypatch.setattr(Heartbeat, "record_first", and_waits)
    starting = asyncio.create_task(harness.worker().start())
    await in_time(recorded.wait())
    assert harness.one("select count(*) from queuert.worker") == 1
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(starting)
    assert harness.one("select count(*) from queuert.worker") == 0


@pytest.mark.parametrize("threads", [True, False], ids=["", "no thread can be started"])
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
async def test_a_start_that_fails_half_way_ends_what_it_began(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch, part: type[Any], threads: bool
) -> None:
    """The harness looks for tasks, threads and connections that are left. A later start is as the first one."""
    entered: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        entered.append("entered")
        yield
        entered.append("left")

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    processors = harness.new_processors(lifespan=lifespan)
    processors.handles(number)(echo)
    worker = harness.worker(processors)
    with monkeypatch.context() as patch:
        patch.setattr(part, "start", no_thread)
        if not threads:
            patch.setattr(HandlerThreads, "_submit", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await in_time(worker.start())
    assert entered == ["entered", "left"]
    assert harness.log.of(WorkerStarted) == []
    assert worker.snapshot() is None
    await none_left(lambda: harness.rows("select name from queuert.worker"), "workers")
    chain = await harness.client.start_chain(number, 7)
    await in_time(worker.start())
    assert await chain.result(WAIT) == 7
    await in_time(worker.stop())
    assert entered == ["entered", "left"] * 2


async def test_a_start_that_gets_no_thread_to_watch_its_loop_ends_what_it_began(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch then waited for a thread that had never begun, and the leases' threads went on."""
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name == "queuert-loop-watch":
            raise RuntimeError("can't start new thread")
        start(thread)

    harness.handles(number, echo)
    worker, before = harness.worker(), set(threading.enumerate())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await in_time(worker.start())
    begun = set(threading.enumerate()) - before
    assert [thread.name for thread in begun if "lease" in thread.name] == []
    await in_time(worker.start())
    await in_time(worker.stop())


@pytest.mark.parametrize("lifespans", [0, 1])
async def test_a_start_sends_a_second_heartbeat_only_after_lifespans(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch, lifespans: int
) -> None:
    record, recorded = Heartbeat.record_first, []

    async def counted(self: Heartbeat, store: AsyncStore) -> None:
        recorded.append(store)
        await record(self, store)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(Heartbeat, "record_first", counted)
    processors = harness.new_processors(lifespan=lifespan if lifespans else None)
    processors.handles(number)(echo)
    async with harness.worker(processors):
        pass
    assert len(recorded) == 1 + lifespans


async def test_a_start_without_a_store_may_be_repeated(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.handles(number, echo)
    worker = harness.worker()

    def no_driver(*_: object, **__: object) -> None:
        raise ImportError("no driver")

    with monkeypatch.context() as patch:
        patch.setattr(PostgresState, "async_store", no_driver)
        with pytest.raises(ImportError, match="no driver"):
            await in_time(worker.start())
    await in_time(worker.start())
    await in_time(worker.stop())


async def test_stop_when_the_start_was_cancelled(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    worker = harness.worker()
    starting = asyncio.create_task(worker.start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await in_time(worker.stop())


async def test_a_start_that_is_called_off_and_cancelled_leaves_nothing(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    calling_off = asyncio.Event()

    async def for_ever(self: Heartbeat, store: AsyncStore) -> None:
        calling_off.set()
        await asyncio.Future()

    monkeypatch.setattr(Heartbeat, "withdraw", for_ever)
    harness.handles(number, echo)
    worker = harness.worker()
    starting = asyncio.create_task(worker.start())
    await asyncio.sleep(0)
    await in_time(worker.stop())
    await in_time(calling_off.wait())
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


async def test_a_worker_that_did_not_begin_hears_of_no_jobs(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Notification] = []
    monkeypatch.setattr(Claimer, "_on_notification", lambda self, notification: heard.append(notification))
    harness.handles(number, echo)
    async with AsyncClient(harness.state, JOB_TYPES, notify=InProcessNotify()) as client:
        worker = InProcessWorker(client, harness.processors)
        await worker.stop()
        await in_time(worker.start())
        client.notify.publish(Topic.JOBS, [number.name])
    assert heard == []


async def test_stop_twice_and_thrice(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    worker = harness.worker()
    await worker.start()
    await in_time(worker.stop())
    await in_time(worker.stop())
    await in_time(asyncio.gather(worker.stop(), worker.stop()))
    assert len(harness.log.of(WorkerStopped)) == 1


async def test_stops_at_the_same_time(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    worker = harness.worker()
    await worker.start()
    await in_time(asyncio.gather(*(worker.stop() for _ in range(5))))
    assert len(harness.log.of(WorkerStopped)) == 1


async def test_start_twice_is_refused(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    worker = harness.worker()
    await worker.start()
    with pytest.raises(ClosedError):
        await worker.start()
    await worker.stop()
    with pytest.raises(ClosedError):
        await worker.start()


async def test_starts_at_the_same_time_start_it_once(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    worker = harness.worker()
    results = await in_time(asyncio.gather(worker.start(), worker.start(), return_exceptions=True))
    assert sorted(type(result).__name__ for result in results) == ["ClosedError", "NoneType"]
    assert len(harness.log.of(WorkerStarted)) == 1


async def test_a_start_that_failed_can_be_repeated_and_leaves_nothing(harness: PostgresHarness, bare_dsn: str) -> None:
    client = AsyncClient(PostgresState(bare_dsn), JOB_TYPES, observability=harness.log)
    harness.handles(number, echo)
    worker = InProcessWorker(client, harness.processors)
    with psycopg.connect(bare_dsn, autocommit=True) as look:
        for _ in range(2):
            with pytest.raises(SchemaMissingError):
                await worker.start()
        with pytest.raises(SchemaMissingError):
            await client.open()
        count = (
            "select pid from pg_stat_activity where datname = current_database() and application_name like 'queuert%'"
        )
        await none_left(lambda: look.execute(count).fetchall(), "connections")
    await client.aclose()


async def test_a_store_out_of_reach_is_a_typed_error(harness: PostgresHarness) -> None:
    client = AsyncClient(PostgresState("postgresql://127.0.0.1:1/none"), JOB_TYPES)
    harness.handles(number, echo)
    with pytest.raises(StateUnavailableError):
        await InProcessWorker(client, harness.processors).start()
    await client.aclose()


async def test_an_exception_inside_the_block_passes_after_the_stop(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuert.worker.runtime._AFTER_CANCEL", WAIT)  # The job is released, however long it takes.
    gate = Gate()

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    async def use() -> None:
        async with harness.worker(shutdown_timeout=0.0):
            await harness.client.start_chain(number, 1)
            await gate.next()
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        await use()
    assert len(harness.log.of(WorkerStopped)) == 1
    assert await held_leases(harness) == 0


@pytest.mark.filterwarnings("error")
async def test_run_inside_a_running_event_loop_says_what_to_use_instead(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    worker = harness.worker()
    with pytest.raises(RunningEventLoopError, match=r"await worker.start\(\)"):
        worker.run()
    gc.collect()
    async with worker:
        assert await (await harness.client.start_chain(number, 1)).result(WAIT) == 1
