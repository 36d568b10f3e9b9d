"""A world with a clock of its own: processes, their event loops and their threads, one step after the other.

All of it runs in one real thread. A step is a callback of an event loop, a stretch of a simulated thread between two
waits, or something that a server does. When nothing is ready, the clock jumps to the next timer. What comes at the
same moment comes in the order in which it was asked for, so that a run is the same each time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol

from greenlet import GreenletExit, getcurrent, greenlet

from tests.model.simulation.event_loop import new_loop

Action = Callable[[], object]

MOST_STEPS = 50_000
"""Steps of one world: the longest of a thousand runs takes 12,000, and these are taken within a second. With more,
something goes round in circles."""


class EndlessRunError(AssertionError):
    """Something in a world goes round in circles."""


class Owner(Protocol):
    """Whose step it is: who may be frozen, busy or dead."""

    def admits(self, step: Step) -> bool:
        """Whether the step may be taken now; if not, it is kept for later, or dropped."""
        ...

    def take(self, action: Action) -> None:
        """Take a step."""
        ...


class Step:
    """Something to be done, unless it is cancelled before."""

    __slots__ = ("action", "cancelled", "owner")

    def __init__(self, owner: Owner | None, action: Action) -> None:
        self.owner = owner
        self.action = action
        self.cancelled = False

    def cancel(self) -> None:
        """It is not to be done."""
        self.cancelled = True


class World:
    """The clock, and what is to be done next."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.steps = 0
        self.accidents: list[str] = []
        """What nobody caught."""
        self.process: Process | None = None
        """Whose step is taken now."""
        self.thread: Thread | None = None
        self.ended = False
        self.on_death: Callable[[Process], object] = lambda process: None
        self.hub = getcurrent()
        self._ready: deque[Step] = deque()
        self._timers: list[tuple[float, int, Step]] = []
        self._numbers = count()

    def soon(self, owner: Owner | None, action: Action) -> Step:
        """Do it after what is to be done now. Without an owner it is a server's."""
        step = Step(owner, action)
        self._ready.append(step)
        return step

    def again(self, steps: deque[Step]) -> None:
        """Steps that had been postponed."""
        self._ready.extend(steps)

    def at(self, when: float, owner: Owner | None, action: Action) -> Step:
        """Do it at that time."""
        step = Step(owner, action)
        heappush(self._timers, (when, next(self._numbers), step))
        return step

    def later(self, seconds: float, owner: Owner | None, action: Action) -> Step:
        """Do it so many seconds from now."""
        return self.at(self.now + seconds, owner, action)

    def run(self, limit: float) -> None:
        """Go on until there is nothing to be done, somebody says that it has ended, or the clock shows ``limit``."""
        while not self.ended:
            if self._ready:
                step = self._ready.popleft()
            elif self._timers and self._timers[0][0] <= limit:
                when, _, step = heappop(self._timers)
                self.now = max(self.now, when)
            else:
                return
            if step.cancelled:
                continue
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise EndlessRunError(f"more than {MOST_STEPS} steps until {self.now:.1f}: it goes round in circles")
            if step.owner is None:
                step.action()
            elif step.owner.admits(step):
                step.owner.take(step.action)

    def wait(self, timeout: float | None, waiters: deque[Waiter]) -> bool:
        """Let the simulated thread that runs now wait among these; whether it was woken before the time was over."""
        thread = self.thread
        assert thread is not None, "whoever waits is to be a thread of a simulated process"
        if not thread.process.alive:
            raise GreenletExit
        waiter = Waiter(self, thread)
        waiters.append(waiter)
        if timeout is not None:
            waiter.timer = self.later(timeout, thread.process, lambda: waiter.go_on(False))
        woken = bool(self.hub.switch())
        if waiter in waiters:
            waiters.remove(waiter)
        return woken


class Waiter:
    """A simulated thread that waits for something."""

    __slots__ = ("_thread", "_world", "over", "timer")

    def __init__(self, world: World, thread: Thread) -> None:
        self._world = world
        self._thread = thread
        self.timer: Step | None = None
        self.over = False

    def wake(self) -> None:
        """What it waited for is there."""
        self._world.soon(self._thread.process, lambda: self.go_on(True))

    def go_on(self, woken: bool) -> None:
        """Let the thread go on, once."""
        if not self.over:
            self.over = True
            if self.timer is not None:
                self.timer.cancel()
            self._thread.go_on(woken)


class Process:
    """A process: an event loop and threads, which can be frozen and killed."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.frozen_at = self.blocked_at = 0.0
        """Until when it, or its event loop, could last do nothing."""
        self.threads: list[Thread] = []
        self._frozen_until = 0.0
        self._held: deque[Step] = deque()
        self.loop = new_loop(self)

    @property
    def frozen(self) -> bool:
        """Whether it stands still."""
        return self.world.now < self._frozen_until

    def admits(self, step: Step) -> bool:
        """What comes to a frozen process waits; what comes to a dead one is lost."""
        if not self.alive:
            return False
        if self.frozen:
            self._held.append(step)
            return False
        return True

    def take(self, action: Action) -> None:
        """Take a step of one of its threads."""
        self.world.process = self
        try:
            action()
        finally:
            self.world.process = None

    def freeze(self, seconds: float) -> None:
        """Stand still, whatever it is at; the clock goes on."""
        self._frozen_until = max(self._frozen_until, self.world.now + seconds)
        self.frozen_at = self._frozen_until
        self.world.at(self._frozen_until, None, self._thaw)

    def _thaw(self) -> None:
        if not self.frozen:
            held, self._held = self._held, deque()
            self.world.again(held)

    def spawn(self, function: Action, name: str = "") -> Thread:
        """Begin a thread."""
        thread = Thread(self, function, name)
        self.threads.append(thread)
        self.world.soon(self, lambda: thread.go_on(None))
        return thread

    def kill(self) -> None:
        """End it here and now: nothing of it is done any more."""
        if not self.alive:
            return
        self.alive = False
        self._held.clear()
        for thread in self.threads:
            thread.end()
        self.loop.end()
        self.world.on_death(self)


class Thread:
    """A simulated thread: it runs alone, until it waits for something."""

    def __init__(self, process: Process, function: Action, name: str) -> None:
        self.process = process
        self.name = name
        self.over = False
        self._joiners: deque[Waiter] = deque()
        self._function = function
        self._body = greenlet(self._run, parent=process.world.hub)

    def _run(self, _: object = None) -> None:
        try:
            self._function()
        except GreenletExit:
            return
        except Exception as error:
            self.process.world.accidents.append(f"thread {self.name} of {self.process.name}: {error!r}")
        finally:
            self.over = True
            for joiner in self._joiners:
                joiner.wake()

    def go_on(self, value: object) -> None:
        """Run until it waits again."""
        if not self.over:
            self._in(lambda: self._body.switch(value))

    def _in(self, action: Action) -> None:
        world, before = self.process.world, self.process.world.thread
        world.thread = self
        try:
            action()
        finally:
            world.thread = before

    def join(self, timeout: float | None) -> None:
        """Wait, in another thread, for its end."""
        if not self.over:
            self.process.world.wait(timeout, self._joiners)

    def end(self) -> None:
        """Its process has died."""
        if not self.over and self._body:
            self._in(lambda: self._body.throw(GreenletExit))
        self.over = True


def start(process: Process, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
    """Begin a task in a process, from outside of it."""
    return process.loop.create_task(coroutine, name=name)
