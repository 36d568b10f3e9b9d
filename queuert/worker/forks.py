"""What a process that a handler forks must not keep of the worker: its signal handlers, and its way back.

A child has the stack of its handler, which leads back into the worker: to its event loop, its leases, its connections,
all of which belong to the parent. So whoever calls code of the application compares ``generation`` before and after,
and calls ``end_child`` if it has changed. What an attempt offers to its handler is refused in a child instead
(``check_process``), since a pool hands errors of its children to their parent.

A forked child has copies of the parent's signal handlers, and the pipe through which signals wake the parent's event
loop. With these the SIGTERM by which a pool ends its processes is read by the worker, as a request to stop, and ends
none of them. See https://github.com/python/cpython/issues/94454.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from queuert.errors import CompletionMisuseError
from queuert.observability.context import current_attempt

T = TypeVar("T")

generation = 0
"""How many forks lie between this process and the one that has imported this module.

Code that runs often compares it itself, which costs a look-up; for the rest there are ``no_way_back`` and ``guarded``.
"""

_RAISED = 1
_WENT_BACK = (
    "queuert: a process that a handler forked must end with os._exit(), and returned from the handler, or awaited "
    "something, or left a block of the attempt"
)

_defaults: dict[int, signal.Handlers] = {}
"""The signals that this process handles, and what they do in forked children."""


class _Local(threading.local):
    mask: set[int] | None = None


_local = _Local()


def default_in_children(numbers: Iterable[signal.Signals]) -> None:
    """From now on, let signals end forked children. Call it before they are handled: those that are ignored now are
    ignored there as well.

    So does SIGINT, without a KeyboardInterrupt: one that is raised before the fork has returned is lost.
    """
    for number in numbers:
        ignored = signal.getsignal(number) is signal.SIG_IGN
        _defaults[number] = signal.SIG_IGN if ignored else signal.SIG_DFL


@contextmanager
def defaults_in_children(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """``default_in_children`` for the length of a ``with`` block."""
    default_in_children(numbers)
    try:
        yield
    finally:
        _defaults.clear()


@contextmanager
def no_way_back() -> Iterator[None]:
    """End the children that are forked in a ``with`` block where they would leave it."""
    before = generation
    try:
        yield
    finally:
        if generation != before:
            end_child()


def call(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call a function, and end the children that it forks where it would return in them."""
    with no_way_back():
        return function(*args, **kwargs)


async def guarded(function: Callable[..., Coroutine[Any, Any, T]], /, *args: Any) -> T:
    """Call a coroutine function, and end the children that it forks where they would await something or return."""
    with no_way_back():
        result: T = await _Steps(function(*args))
        return result


class _Steps(Coroutine[Any, Any, Any]):
    """A coroutine, to be awaited or run by a task, of which no step ends in a forked child."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._before = generation

    def send(self, value: Any) -> Any:
        """Run the next step."""
        try:
            return self._coroutine.send(value)
        finally:
            if generation != self._before:
                end_child()

    def throw(self, *error: Any) -> Any:
        """Run the next step, which begins with an exception."""
        try:
            return self._coroutine.throw(*error)
        finally:
            if generation != self._before:
                end_child()

    def close(self) -> None:
        """End the coroutine."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            awaited = self.send(None)
            while True:
                try:
                    value = yield awaited
                except BaseException as error:
                    awaited = self.throw(error)
                else:
                    awaited = self.send(value)
        except StopIteration as end:
            return end.value

    def __getattr__(self, name: str) -> Any:
        # Its name, code and frame, for what shows a task.
        return getattr(self._coroutine, name)


def make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **settings: Any) -> asyncio.Task[Any]:
    """Make a task, as the task factory of an event loop that is the worker's alone.

    Children that are forked in a task of a handler end where they would go back to the event loop. Otherwise that would
    run once more before even an exception leaves it: under uvloop the child then takes a wake-up that was sent to its
    parent, and the parent, which believes that this is still under way, is never woken by a thread again.
    """
    if current_attempt.get() is not None:
        coroutine = _Steps(coroutine)
    return asyncio.Task(coroutine, loop=loop, **settings)


def check_process(before: int) -> None:
    """Raise CompletionMisuseError in a child that was forked since ``generation`` was ``before``."""
    if generation != before:
        raise CompletionMisuseError(
            "an attempt must be used in the process of its handler, and this is one that the handler forked: let it "
            "return what it has found, and call the methods of the attempt with that in the handler's process"
        )


def end_child() -> NoReturn:
    """End this process, which a handler has forked, and which would go on as its worker.

    It has no event loop, no threads and no connections of its own: it cannot do what the worker does next.
    """
    error, code = sys.exc_info()[1], _RAISED
    try:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            if not isinstance(error.code, int | None):
                print(error.code, file=sys.stderr)  # noqa: T201
        elif error is not None and not isinstance(error, StopIteration):  # That is how a coroutine returns.
            traceback.print_exception(error)
        else:
            print(_WENT_BACK, file=sys.stderr)  # noqa: T201
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # Also if the handler has closed these, or they lead nowhere.
        os._exit(code & 0xFF)


def _before() -> None:
    # A signal that arrives in the child before it has its own actions would be handled as in the parent.
    if _defaults:
        _local.mask = {*signal.pthread_sigmask(signal.SIG_BLOCK, _defaults)}


def _in_parent() -> None:
    if _local.mask is not None:
        mask, _local.mask = _local.mask, None
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    global generation
    generation += 1
    if _defaults:
        signal.set_wakeup_fd(-1)
        for number, action in _defaults.items():
            signal.signal(number, action)
        _defaults.clear()
    _in_parent()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
