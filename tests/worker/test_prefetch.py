"""Jobs that are claimed ahead of a free place: how many, and what becomes of those that are not started."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextvars import Context
from typing import Any, ClassVar, cast

import pytest

from queuert.worker.prefetch import MAX_PREFETCH, HandlerDurationEstimate, Prefetch
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def _nothing_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is released after a second without a start: a test that stands still for so long starts nothing."""
    monkeypatch.setattr("queuert.worker.prefetch.STALE_SECONDS", 3_600.0)


@pytest.fixture(autouse=True)
async def _handlers_end() -> AsyncIterator[None]:
    """Those that still run when a test has seen enough would be destroyed as garbage, in the middle of another test."""
    yield
    while Handlers.made:
        await Handlers.made.pop().end()


class TestHandlerDurationEstimate:
    def test_nothing_is_known_at_first(self) -> None:
        assert HandlerDurationEstimate().jobs_ahead(10) == 0

    def test_as_many_as_the_places_get_through_in_a_twentieth_of_a_second(self) -> None:
        pace = HandlerDurationEstimate()
        pace.add(0.001)
        assert pace.jobs_ahead(1) == 50
        assert pace.jobs_ahead(4) == 200

    def test_never_more_than_a_thousand(self) -> None:
        pace = HandlerDurationEstimate()
        pace.add(0.0)
        assert pace.jobs_ahead(100) == MAX_PREFETCH

    def test_a_long_handler_counts_at_once_and_is_forgotten_by_and_by(self) -> None:
        pace = HandlerDurationEstimate()
        pace.add(0.001)
        pace.add(1.0)
        assert pace.jobs_ahead(1) == 0
        for _ in range(200):
            pace.add(0.001)
        assert 40 <= pace.jobs_ahead(1) <= 50


class Runner:
    """One that waits in the prefetch."""

    input_bytes = 0

    def __init__(self, handlers: Handlers, number: int) -> None:
        self.handlers = handlers
        self.number = number

    def run(self, task: asyncio.Task[None]) -> Coroutine[Any, Any, bool]:
        """What a slot runs."""
        return self.handlers.run(self.number)

    def keep_context(self, context: Context) -> None:
        """Nobody reports of it."""

    def release(self) -> None:
        """It does not begin."""
        self.handlers.released.append(self.number)


class Handlers:
    """What the prefetch starts; each runs until it is let go."""

    made: ClassVar[list[Handlers]] = []

    def __init__(self, slots: int, *, enabled: bool = True) -> None:
        self.made.append(self)
        self.started: list[int] = []
        self.gates: dict[int, asyncio.Event] = {}
        self.began: asyncio.Queue[int] = asyncio.Queue()
        self.released: list[int] = []
        self.prefetch = Prefetch(cast(Any, self), slots, enabled=enabled)

    async def end(self) -> None:
        """Cancel those that still run."""
        slots = self.prefetch.slots
        slots.close()
        slots.cancel()
        await asyncio.gather(*slots._tasks, return_exceptions=True)

    def may_begin(self, runner: object) -> bool:
        """As the worker, which lets each begin."""
        return True

    async def run(self, number: int) -> bool:
        """Run until it is let go."""
        self.started.append(number)
        gate = self.gates[number] = asyncio.Event()
        self.began.put_nowait(number)
        await gate.wait()
        return True

    async def begin(self, *numbers: int) -> None:
        """Wait until these have begun."""
        for number in numbers:
            assert await self.began.get() == number

    def put(self, *numbers: int) -> None:
        self.prefetch.put(cast(Any, [Runner(self, number) for number in numbers]))

    def release_waiting(self) -> list[int]:
        """The numbers of those that waited."""
        self.released.clear()
        self.prefetch.release_waiting()
        return self.released


async def test_started_in_order_as_places_become_free() -> None:
    handlers = Handlers(2)
    handlers.put(1, 2, 3, 4)
    await handlers.begin(1, 2)
    handlers.gates[2].set()
    await handlers.begin(3)
    handlers.gates[1].set()
    await handlers.begin(4)
    assert handlers.started == [1, 2, 3, 4]
    assert len(handlers.prefetch) == 0


async def test_the_first_claim_is_for_the_places_alone() -> None:
    assert await Handlers(3).prefetch.wait_for_demand() == 3


async def test_each_claim_at_most_doubles_what_waits() -> None:
    handlers = Handlers(1)
    handlers.prefetch.durations.add(0.0001)
    wanted = []
    for _ in range(3):
        wanted.append(await handlers.prefetch.wait_for_demand())
        handlers.prefetch.release_waiting()
        handlers.prefetch._size = wanted[-1]
    assert wanted == [3, 7, 15]


async def test_no_room_while_most_of_it_waits() -> None:
    handlers = Handlers(1)
    handlers.prefetch.durations.add(0.001)
    room = await handlers.prefetch.wait_for_demand()
    assert room == 3
    handlers.put(*range(room))
    await handlers.begin(0)
    waiting = asyncio.ensure_future(handlers.prefetch.wait_for_demand())
    await asyncio.sleep(0)
    assert not waiting.done()
    handlers.gates[0].set()
    await handlers.begin(1)
    assert await waiting == 3  # One waits still, of four that may.


@pytest.mark.parametrize(("most", "low"), [(4, 2), (998, 499), (1_000, 750), (2_000, 1_500)])
async def test_the_next_claim_is_sent_while_half_wait_or_of_many_three_quarters(
    monkeypatch: pytest.MonkeyPatch, most: int, low: int
) -> None:
    monkeypatch.setattr("queuert.worker.prefetch._MAX_WAIT", 3600.0)  # At whatever pace this machine begins them.
    handlers = Handlers(1)
    handlers.prefetch.durations.add(1e-6)
    handlers.prefetch._size = most // 2
    room = await handlers.prefetch.wait_for_demand()
    assert room == 1 + most
    handlers.put(*range(room))
    await handlers.begin(0)
    waiting = asyncio.ensure_future(handlers.prefetch.wait_for_demand())
    for number in range(most - low):
        assert not waiting.done()
        assert len(handlers.prefetch) == most - number
        handlers.gates[number].set()
        await handlers.begin(number + 1)
    assert await waiting > 0
    assert len(handlers.prefetch) == low


async def test_without_leave_only_for_the_places() -> None:
    handlers = Handlers(2, enabled=False)
    handlers.prefetch.durations.add(0.0001)
    assert await handlers.prefetch.wait_for_demand() == 2
    handlers.put(1, 2)
    await handlers.begin(1, 2)
    waiting = asyncio.ensure_future(handlers.prefetch.wait_for_demand())
    handlers.gates[1].set()
    assert await waiting == 1


async def test_what_is_taken_back_is_not_started() -> None:
    handlers = Handlers(1)
    handlers.put(1, 2, 3)
    await handlers.begin(1)
    assert handlers.release_waiting() == [2, 3]
    handlers.gates[1].set()
    assert await handlers.prefetch.wait_for_demand() == 1
    assert handlers.started == [1]


async def test_nothing_is_started_after_the_end() -> None:
    handlers = Handlers(1)
    handlers.put(1, 2)
    await handlers.begin(1)
    handlers.prefetch.slots.close()
    handlers.put(3)
    handlers.gates[1].set()
    while handlers.prefetch.slots.running:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert handlers.started == [1]
    assert handlers.release_waiting() == [2, 3]
    assert await handlers.prefetch.wait_for_demand() == 0


class Clock:
    """The lease clock, which stands still until it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("queuert.worker.prefetch.lease_time", lambda: self.now)
        monkeypatch.setattr("queuert.worker.prefetch.STALE_SECONDS", 1.0)


@pytest.mark.parametrize("waiting", [1, 2, 4], ids=["almost none waits", "half of them wait", "all wait"])
async def test_what_has_waited_for_a_second_is_to_be_released(monkeypatch: pytest.MonkeyPatch, waiting: int) -> None:
    """Also while so few wait that more would be claimed."""
    clock = Clock(monkeypatch)
    handlers = Handlers(1)
    handlers.prefetch.durations.add(0.001)
    handlers.prefetch._size = 2
    assert handlers.prefetch.stale_in == math.inf
    assert await handlers.prefetch.wait_for_demand() == 5
    handlers.put(*range(1 + waiting))
    await handlers.begin(0)
    clock.now += 0.75
    assert handlers.prefetch.stale_in == 0.25
    handlers.prefetch._release_stale()
    assert handlers.released == []
    clock.now += 0.25
    handlers.prefetch._release_stale()
    assert handlers.released == list(range(1, 1 + waiting))
    assert handlers.prefetch.stale_in == math.inf


async def test_a_timer_releases_what_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody calls ``wait_for_demand``: the claimer may wait for an answer of the store."""
    monkeypatch.setattr("queuert.worker.prefetch.STALE_SECONDS", 0.02)
    handlers = Handlers(1)
    handlers.put(0, 1, 2)
    await handlers.begin(0)
    await until(lambda: handlers.released == [1, 2], "they are released")
    handlers.put(3)
    await until(lambda: handlers.released == [1, 2, 3], "so is what is put there later")
    assert handlers.prefetch._timer is None


async def test_one_timer_for_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks again when the oldest of those that wait then would be stale, and ends when none waits."""
    clock = Clock(monkeypatch)
    handlers = Handlers(1)
    handlers.put(0, 1)
    timer = handlers.prefetch._timer
    clock.now += 0.5
    handlers.put(2)
    assert timer is not None
    assert handlers.prefetch._timer is timer
    for number in range(2):
        await handlers.begin(number)
        handlers.gates[number].set()
    await handlers.begin(2)
    timer.cancel()
    handlers.put(3)
    clock.now += 0.5
    seconds: list[float] = []
    monkeypatch.setattr(handlers.prefetch, "_set_timer", seconds.append)
    handlers.prefetch._release_stale()
    assert seconds == [0.5]
    handlers.gates[2].set()
    await handlers.begin(3)
    handlers.prefetch._release_stale()
    assert seconds == [0.5]
    assert handlers.released == []


async def test_the_job_that_has_waited_longest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may begin meanwhile, as with one quick slot among many that are taken by long handlers."""
    clock = Clock(monkeypatch)
    handlers = Handlers(1)
    handlers.put(0, 1)
    clock.now += 0.5
    handlers.put(2, 3)
    assert handlers.prefetch.stale_in == 0.5
    await handlers.begin(0)
    handlers.gates[0].set()
    await handlers.begin(1)
    assert handlers.prefetch.stale_in == 1.0
    handlers.gates[1].set()
    await handlers.begin(2)
    clock.now += 0.75
    handlers.put(4)
    assert handlers.prefetch.stale_in == 0.25


async def test_what_is_released_tells_how_long_handlers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    handlers = Handlers(4)
    handlers.put(*range(10))
    await handlers.begin(0, 1, 2, 3)
    clock.now += 2.0
    handlers.prefetch._release_stale()
    assert handlers.prefetch.durations.jobs_ahead(40) == 1  # Four in two seconds, by four slots: two seconds each.
    other = Handlers(1)
    other.put(0)
    await other.begin(0)
    other.put(1)
    clock.now += 2.0
    other.prefetch._release_stale()
    assert other.prefetch.durations.jobs_ahead(40) == 1


async def test_nothing_is_prefetched_after_a_stale_release_until_an_attempt_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker whose slots are all taken does not claim its own release before others do."""
    clock = Clock(monkeypatch)
    handlers = Handlers(40)
    handlers.put(*range(41))
    await handlers.begin(*range(40))
    clock.now += 1.0
    handlers.prefetch._release_stale()
    assert handlers.prefetch.durations.jobs_ahead(40) == 2
    waiting = asyncio.ensure_future(handlers.prefetch.wait_for_demand())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    handlers.gates[0].set()
    assert await waiting == 1, "for the free slot alone"
    handlers.put(41)
    await handlers.begin(41)
    assert await handlers.prefetch.wait_for_demand() == 2
    handlers.prefetch.slots.cancel()


async def test_few_wait_for_one_quick_slot_of_a_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are taken by handlers of which nothing is known yet: what waits does so for the quick one alone.

    With as many as a hundred quick slots run, a thousand would be released each second, and claimed again.
    """
    clock = Clock(monkeypatch)
    handlers = Handlers(100)
    prefetch, longest = handlers.prefetch, 0
    handlers.put(*range(100))
    await handlers.begin(*range(100))
    for number in range(99, 3_000):
        clock.now += 0.001
        prefetch.durations.add(0.001)
        handlers.gates.pop(number).set()
        await asyncio.sleep(0)
        if demand := prefetch._demand():
            handlers.put(*range(prefetch.put_count, prefetch.put_count + demand))
        await handlers.begin(number + 1)
        longest = max(longest, len(prefetch))
        assert prefetch.stale_in > 0.5
    assert longest > 50, "the quick one does not wait for the store"
    prefetch.slots.cancel()


class Full(deque[Any]):
    """Gets no memory for a third."""

    def append(self, runner: Any) -> None:
        if len(self) == 2:
            raise MemoryError
        super().append(runner)


async def test_attempts_for_which_there_is_no_memory_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else knows of them; the others wait, and begin when there is something to begin with."""
    clock = Clock(monkeypatch)
    handlers = Handlers(1)
    handlers.prefetch._waiting = Full()
    with pytest.raises(MemoryError):
        handlers.put(1, 2, 3, 4)
    assert handlers.released == [3, 4]
    assert handlers.prefetch._timer is not None, "they wait no longer than others"
    handlers.prefetch.slots.start_next()
    await handlers.begin(1)
    clock.now += 0.5
    handlers.put(5)
    handlers.gates[1].set()
    await handlers.begin(2)
    assert handlers.prefetch.stale_in == 1.0, "those that were released do not count"
    assert handlers.release_waiting() == [5]
    handlers.prefetch.slots.cancel()


class Raising(Runner):
    """Gets no memory for its release."""

    def release(self) -> None:
        """Raise."""
        raise MemoryError


async def test_a_release_that_raises_keeps_the_rest_to_be_released() -> None:
    """Their leases are renewed until then."""
    handlers = Handlers(1)
    handlers.put(0)
    await handlers.begin(0)
    handlers.prefetch.put(cast(Any, [Raising(handlers, 1), Runner(handlers, 2)]))
    with pytest.raises(MemoryError):
        handlers.prefetch.release_waiting()
    assert len(handlers.prefetch) == 1
    assert handlers.prefetch._timer is not None
    assert handlers.release_waiting() == [2]
    handlers.prefetch.slots.cancel()
