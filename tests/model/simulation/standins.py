"""Replaces the clock, threads and chance in the worker's own modules while a world is simulated."""

from __future__ import annotations

import random
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableSet
from contextlib import ExitStack, contextmanager
from random import Random
from types import ModuleType
from typing import Any
from unittest.mock import patch

import queuert.worker.attempt
import queuert.worker.claimer
import queuert.worker.finishes
import queuert.worker.leases
import queuert.worker.runtime
import queuert.worker.threads
from tests.model.simulation.world import Thread, Waiter, World
from tests.support.lease_clock import lease_clock

_THREADED = (queuert.worker.attempt, queuert.worker.leases, queuert.worker.threads)
"""Modules whose threads are simulated. The locks of the others are never waited for: one thing runs at a time."""


class Clock:
    """Replaces the module ``time``."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        """The world's time."""
        return self._world.now

    time = monotonic


class Event:
    """Replaces ``threading.Event``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._set = False
        self._waiters: deque[Waiter] = deque()

    def is_set(self) -> bool:
        """Whether it is."""
        return self._set

    def set(self) -> None:
        """Let go on who waits."""
        self._set = True
        while self._waiters:
            self._waiters.popleft().wake()

    def clear(self) -> None:
        """Let wait who comes."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set."""
        return self._set or self._world.wait(timeout, self._waiters) or self._set


class SimulatedThread:
    """Replaces ``threading.Thread``."""

    def __init__(self, world: World, target: Callable[[], object], name: str = "", daemon: bool = True) -> None:
        self._world = world
        self._target = target
        self._name = name
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin, in the process whose step this is."""
        assert self._world.process is not None
        self._thread = self._world.process.spawn(self._target, self._name)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        if self._thread is not None:
            self._thread.join(timeout)

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._thread is not None and not self._thread.over


class Threading:
    """Replaces the module ``threading``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.Lock = threading.Lock

    def Event(self) -> Event:  # noqa: N802
        """A simulated event."""
        return Event(self._world)

    def Thread(self, **settings: Any) -> SimulatedThread:  # noqa: N802
        """A simulated thread."""
        return SimulatedThread(self._world, **settings)


class Queue:
    """Replaces ``queue.SimpleQueue``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[Any] = deque()
        self._waiters: deque[Waiter] = deque()

    def put(self, item: Any) -> None:
        """Hand something over."""
        self._items.append(item)
        if self._waiters:
            self._waiters.popleft().wake()

    def get(self) -> Any:
        """Wait for something."""
        while not self._items:
            self._world.wait(None, self._waiters)
        return self._items.popleft()


@contextmanager
def simulated(world: World, seed: int) -> Iterator[None]:
    """Let the worker's modules live in this world."""
    ids = Random(seed)

    def token() -> str:
        return str(uuid.UUID(int=ids.getrandbits(128), version=4))

    before = random.getstate()
    random.seed(seed)
    with ExitStack() as stack:
        for module in _modules_with(time):
            stack.enter_context(patch.object(module, "time", Clock(world)))
        stack.enter_context(lease_clock(lambda *_: world.now))
        for module in _THREADED:
            stack.enter_context(patch.object(module, "threading", Threading(world)))
        stack.enter_context(patch.object(queuert.worker.threads, "SimpleQueue", lambda: Queue(world)))
        stack.enter_context(patch.object(queuert.worker.claimer, "new_token", token))
        stack.enter_context(patch.object(queuert.worker.runtime, "new_id", token))
        stack.enter_context(patch.object(queuert.worker.finishes, "new_id", token))
        try:
            yield
        finally:
            random.setstate(before)


def _modules_with(module: ModuleType) -> list[ModuleType]:
    found = [one for name, one in list(sys.modules.items()) if name.startswith("queuert.worker.")]
    return [one for one in found if getattr(one, "time", None) is module]


class Ordered(MutableSet[Any]):
    """Replaces a set whose members are only told apart by where they lie in memory: this one has an order."""

    def __init__(self) -> None:
        self._members: dict[Any, None] = {}

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def __iter__(self) -> Iterator[Any]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def add(self, value: Any) -> None:
        """Add a member, as the last one."""
        self._members[value] = None

    def discard(self, value: Any) -> None:
        """Take out a member, if it is there."""
        self._members.pop(value, None)

    def update(self, values: Iterable[Any]) -> None:
        """Add members."""
        self._members.update(dict.fromkeys(values))
