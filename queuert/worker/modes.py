"""The two modes of the methods of an attempt: those to await, and those with ``_sync`` for plain functions.

Either in the wrong mode looks right: a coroutine that nobody awaits does nothing, and raises nothing, so durable work
would be left out; a call that blocks works, and stops all other handlers of the event loop meanwhile.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from queuert.errors import StepMisuseError

if TYPE_CHECKING:
    from queuert.worker.transaction_blocks import BlockHost

T = TypeVar("T")


class Unawaited:
    """The coroutines that the methods of one attempt have returned, until they are started."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: list[tuple[str, str | None, Coroutine[Any, Any, Any]]] = []

    def add(self, method: str, name: str | None, coroutine: Coroutine[Any, Any, Any]) -> None:
        """A method has returned this coroutine; ``name`` is that of its step."""
        # Nearly always the one before is over by now, so this keeps one, however many steps there are.
        self._made = [*self._unstarted(), (method, name, coroutine)]

    def check(self, error: BaseException | None) -> None:
        """The handler has returned, or has raised ``error``: close what it has not awaited.

        An error that has another cause stays, with a note.

        Raises:
            StepMisuseError: there was such a coroutine, and the handler returned or used it as a value.
        """
        left = self._unstarted()
        self._made = []
        if not left:
            return
        for _, _, coroutine in left:
            coroutine.close()  # Else Python warns of it, at a place that says nothing.
        message = _message([(method, name) for method, name, _ in left])
        if error is None:
            raise StepMisuseError(message) from None
        if isinstance(error, TypeError | AttributeError) and "coroutine" in str(error):
            raise StepMisuseError(message) from error
        error.add_note(message)

    def _unstarted(self) -> list[tuple[str, str | None, Coroutine[Any, Any, Any]]]:
        return [one for one in self._made if inspect.getcoroutinestate(one[2]) == inspect.CORO_CREATED]


def _message(calls: list[tuple[str, str | None]]) -> str:
    method, name = calls[0]
    shown = f"attempt.{method}({'' if name is None else repr(name)})"
    others = "was" if len(calls) == 1 else f"and {len(calls) - 1} more were"
    return f"{shown} {others} never awaited: write await attempt.{method}(...)"


def _needs_event_loop(method: str) -> StepMisuseError:
    return StepMisuseError(
        f"attempt.{method}() works in coroutines of the worker's event loop: a plain function calls "
        f"attempt.{method}_sync(...)"
    )


def _blocks_event_loop(method: str) -> StepMisuseError:
    return StepMisuseError(
        f"attempt.{method}_sync() works in plain functions, and blocks the event loop of a coroutine: write "
        f"await attempt.{method}(...)"
    )


def _event_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def check_event_loop(method: str) -> None:
    """Raise StepMisuseError if no event loop runs here, of a method that does not know the worker's."""
    if _event_loop() is None:
        raise _needs_event_loop(method)


def check_no_event_loop(method: str) -> None:
    """Raise StepMisuseError if an event loop runs here, which the method would block."""
    if _event_loop() is not None:
        raise _blocks_event_loop(method)


def mark_coroutine_function(function: Callable[..., Coroutine[Any, Any, Any]]) -> None:
    """Let a plain function that returns a coroutine pass for a coroutine function.

    Mocks ask for that: they would else return no coroutine, and a test of a handler could not await it.
    """
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(function)
    else:
        # What asyncio.iscoroutinefunction looks at. Type checkers do not know it.
        vars(function)["_is_coroutine"] = vars(asyncio.coroutines)["_is_coroutine"]


class TwoModes:
    """What the methods of an attempt that wait have in common."""

    __slots__ = ("_unawaited",)

    _unawaited: Unawaited | None

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        for name, method in vars(cls).items():
            if f"{name}_sync" in vars(cls) and inspect.isfunction(method):
                mark_coroutine_function(method)

    if TYPE_CHECKING:
        _host: BlockHost

    def _to_await(
        self, method: str, name: str | None, function: Callable[..., Coroutine[Any, Any, T]], /, *args: Any
    ) -> Coroutine[Any, Any, T]:
        """Return the coroutine of a method, which the handler must await.

        Raises:
            StepMisuseError: the worker's event loop does not run here.
        """
        if not self._host.in_event_loop():
            self._host.check_process()
            raise _needs_event_loop(method)
        coroutine = function(*args)
        if self._unawaited is None:
            self._unawaited = Unawaited()
        self._unawaited.add(method, name, coroutine)
        return coroutine

    def _check_in_thread(self, method: str) -> None:
        """Raise StepMisuseError in the worker's event loop, which a method for plain functions would block."""
        if self._host.in_event_loop():
            raise _blocks_event_loop(method)
