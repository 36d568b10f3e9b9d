"""Jobs that are claimed ahead of a free place: how many, and what becomes of those that are not started."""

from __future__ import annotations

import asyncio

import pytest

from queuert.worker.prefetch import MOST_AHEAD, Pace, Prefetch
from queuert.worker.slots import Slots


class TestPace:
    def test_nothing_is_known_at_first(self) -> None:
        assert Pace().ahead(10) == 0

    def test_as_many_as_the_places_get_through_in_a_twentieth_of_a_second(self) -> None:
        pace = Pace()
        pace.note(0.001)
        assert pace.ahead(1) == 50
        assert pace.ahead(4) == 200

    def test_never_more_than_a_thousand(self) -> None:
        pace = Pace()
        pace.note(0.0)
        assert pace.ahead(100) == MOST_AHEAD

    def test_a_long_handler_counts_at_once_and_is_forgotten_by_and_by(self) -> None:
        pace = Pace()
        pace.note(0.001)
        pace.note(1.0)
        assert pace.ahead(1) == 0
        for _ in range(200):
            pace.note(0.001)
        assert 40 <= pace.ahead(1) <= 50


class Handlers:
    """Starts what the prefetch says, in slots; each runs until it is let go."""

    def __init__(self, places: int, *, enabled: bool = True) -> None:
        self.slots = Slots(places)
        self.started: list[int] = []
        self.gates: dict[int, asyncio.Event] = {}
        self.prefetch: Prefetch[int] = Prefetch(self.slots, self._start, enabled=enabled)

    def _start(self, number: int) -> None:
        self.started.append(number)
        self.gates[number] = asyncio.Event()
        self.slots.start(self._run(number))

    async def _run(self, number: int) -> None:
        await self.gates[number].wait()

    async def end(self, number: int) -> None:
        """Let a handler end, and wait until its place is free."""
        self.gates[number].set()
        await self.slots.changed()

    def put(self, *numbers: int) -> None:
        for number in numbers:
            self.prefetch.put(number)


async def test_started_in_order_as_places_become_free() -> None:
    handlers = Handlers(2)
    handlers.put(1, 2, 3, 4)
    assert handlers.started == [1, 2]
    await handlers.end(2)
    assert handlers.started == [1, 2, 3]
    await handlers.end(1)
    assert handlers.started == [1, 2, 3, 4]
    assert len(handlers.prefetch) == 0


async def test_the_first_claim_is_for_the_places_alone() -> None:
    assert await Handlers(3).prefetch.room() == 3


async def test_each_claim_at_most_doubles_what_waits() -> None:
    handlers = Handlers(1)
    handlers.prefetch.pace.note(0.0001)
    wanted = []
    for _ in range(3):
        wanted.append(await handlers.prefetch.room())
        handlers.prefetch.take_back()
        handlers.prefetch._most = wanted[-1]
    assert wanted == [3, 7, 15]


async def test_no_room_while_more_than_half_of_it_waits() -> None:
    handlers = Handlers(1)
    handlers.prefetch.pace.note(0.001)
    room = await handlers.prefetch.room()
    assert room == 3
    handlers.put(*range(room))
    waiting = asyncio.ensure_future(handlers.prefetch.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    await handlers.end(0)
    assert await waiting == 3  # One waits still, of four that may.


async def test_without_leave_only_for_the_places() -> None:
    handlers = Handlers(2, enabled=False)
    handlers.prefetch.pace.note(0.0001)
    assert await handlers.prefetch.room() == 2
    handlers.put(1, 2)
    waiting = asyncio.ensure_future(handlers.prefetch.room())
    await handlers.end(1)
    assert await waiting == 1


async def test_what_is_taken_back_is_not_started() -> None:
    handlers = Handlers(1)
    handlers.put(1, 2, 3)
    assert handlers.prefetch.take_back() == [2, 3]
    await handlers.end(1)
    assert handlers.started == [1]


async def test_nothing_is_started_after_the_end() -> None:
    handlers = Handlers(1)
    handlers.put(1, 2)
    handlers.slots.stop_waiting()
    handlers.put(3)
    handlers.gates[1].set()
    assert await handlers.slots.wait_until_empty(5)
    assert handlers.started == [1]
    assert handlers.prefetch.take_back() == [2, 3]
    assert await handlers.prefetch.room() == 0


async def test_stale_when_nothing_was_started_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuert.worker.prefetch.STALE_SECONDS", 0.0)
    handlers = Handlers(1)
    handlers.prefetch.pace.note(0.001)
    assert not handlers.prefetch.stale  # Nothing waits.
    room = await handlers.prefetch.room()
    handlers.put(*range(room))
    assert await handlers.prefetch.room() == 0
    assert handlers.prefetch.stale
