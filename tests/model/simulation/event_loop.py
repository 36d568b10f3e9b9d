"""The event loop of a simulated process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from tests.model.simulation.world import Action, Process, Step


class VirtualLoop(asyncio.AbstractEventLoop):
    """The event loop of a simulated process: its time and its timers are the world's."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.tasks: list[asyncio.Task[Any]] = []
        self._world = process.world
        self._blocked_until = 0.0
        self._held: deque[Step] = deque()

    # --- whose turn it is ---------------------------------------------------------------------------------------------

    def admits(self, step: Step) -> bool:
        """Callbacks wait while the process is frozen, or something blocks the loop."""
        if not self.process.admits(step):
            return False
        if self._world.now < self._blocked_until:
            self._held.append(step)
            return False
        return True

    def take(self, action: Action) -> None:
        """Run a callback."""
        asyncio._set_running_loop(self)
        self._world.process = self.process
        try:
            action()
        finally:
            self._world.process = None
            asyncio._set_running_loop(None)

    def block(self, seconds: float) -> None:
        """From this step's end on, nothing else runs in the loop for a while; threads do."""
        self._blocked_until = self.process.blocked_at = self._world.now + seconds
        self._world.at(self._blocked_until, None, self._go_on)

    def _go_on(self) -> None:
        if self._world.now >= self._blocked_until:
            held, self._held = self._held, deque()
            self._world.again(held)

    def end(self) -> None:
        """Its process has died: what runs in it is closed, and can do nothing any more."""
        asyncio._set_running_loop(self)
        try:
            for task in self.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                if not task.done():
                    _close(task.get_coro())
        finally:
            asyncio._set_running_loop(None)

    # --- what asyncio asks for ----------------------------------------------------------------------------------------

    def time(self) -> float:
        """The world's."""
        return self._world.now

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Call it in the next turn."""
        handle = asyncio.Handle(callback, args, self, context)
        self._world.soon(self, lambda: _call(handle))
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call it in so many seconds."""
        return self.call_at(self._world.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call it at that time."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._world.at(when, self, lambda: _call(handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        """A task of this loop."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        if not self.process.alive:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coro.close()
        self.tasks.append(task)
        if len(self.tasks) > 500:
            self.tasks = [one for one in self.tasks if not one.done()]
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """Call it in a thread of the process."""
        future = self.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                self.call_soon(settle, None, error)
            else:
                self.call_soon(settle, result, None)

        self.process.spawn(work, "executor")
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An error that nobody caught."""
        if self.process.alive:
            self._world.accidents.append(f"event loop of {self.process.name}: {context}")

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """As far as anybody can tell."""
        return True

    def is_closed(self) -> bool:
        """Whether its process has died."""
        return not self.process.alive


def _call(handle: asyncio.Handle) -> None:
    if not handle.cancelled():
        handle._run()


def new_loop(process: Process) -> VirtualLoop:
    """The event loop of a new process."""
    # What it lacks (sockets, signals, child processes) nothing in a simulated process asks for.
    made: Callable[[Process], VirtualLoop] = cast("Any", VirtualLoop)
    return made(process)


def _close(coroutine: Any) -> None:
    for _ in range(5):
        try:
            coroutine.close()
        except RuntimeError:
            continue  # It would rather wait for something. It is asked again.
        else:
            return
