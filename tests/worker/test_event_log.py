"""The log of events that tests wait on."""

import asyncio
import threading

import pytest

from queuert.observability import Observers
from queuert.observability.events import JobsReleased, LoopRecovered, WorkerStopped
from queuert.testing.events import EventLog


def released(count: int, worker: str = "w") -> JobsReleased:
    return JobsReleased(worker=worker, count=count)


async def test_an_event_reported_before_the_wait_counts() -> None:
    log = EventLog()
    log.emit(released(1))
    assert await log.wait_for(JobsReleased) == released(1)


async def test_an_event_from_another_thread_wakes_the_waiter() -> None:
    log = EventLog()
    waiting = asyncio.create_task(log.wait_for(JobsReleased, count=2))
    await asyncio.sleep(0)
    thread = threading.Thread(target=lambda: any(map(log.emit, (released(1), released(2)))))
    thread.start()
    assert await waiting == released(2)
    thread.join()


async def test_the_second_of_its_kind_is_waited_for() -> None:
    log = EventLog()
    for event in (released(1), released(2), released(3)):
        log.emit(event)
    assert await log.wait_for(JobsReleased, times=2) == released(2)
    assert log.wait_for_sync(JobsReleased, times=3) == released(3)


def test_a_thread_waits_too() -> None:
    log = EventLog()
    thread = threading.Timer(0, lambda: log.emit(released(7, "other")))
    thread.start()
    assert log.wait_for_sync(JobsReleased, worker="other").count == 7
    thread.join()


async def test_a_wait_in_vain_says_what_was_reported() -> None:
    log = EventLog()
    log.emit(LoopRecovered(worker="w", loop="claimer", failures=3))
    with pytest.raises(AssertionError, match=r"JobsReleased\(count=1\) was not told[\s\S]*LoopRecovered"):
        await log.wait_for(JobsReleased, count=1, timeout=0.01)
    with pytest.raises(AssertionError, match="not told"):
        log.wait_for_sync(JobsReleased, timeout=0.01)


async def test_a_misspelled_field_is_refused() -> None:
    with pytest.raises(TypeError, match="no field wroker"):
        await EventLog().wait_for(WorkerStopped, wroker="w")


def test_what_is_forgotten_does_not_count() -> None:
    log = EventLog()
    log.emit(released(1))
    log.forget()
    assert log.events == ()
    assert log.of(JobsReleased) == []


async def test_it_is_an_observability_adapter() -> None:
    log = EventLog()
    Observers([log]).emit(released(1))
    assert log.of(JobsReleased, count=1) == [released(1)]
