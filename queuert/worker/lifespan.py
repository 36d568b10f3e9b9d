"""The lifespan of processors: a context manager around all attempts of a worker, whose value handlers get."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, cast

from queuert.errors import DefinitionError, LifespanError
from queuert.ids import new_id
from queuert.worker import forks
from queuert.worker.timeouts import ended_within

S = TypeVar("S")

Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[S] | AbstractContextManager[S]]
"""A function without arguments, decorated with ``@asynccontextmanager`` or ``@contextmanager``."""

_AFTER_CANCEL = 2.0
"""Seconds that a cancelled lifespan has to end."""


@dataclass(frozen=True, slots=True)
class GroupLifespan:
    """The lifespan of one Processors. Two groups with the same function are entered one by one."""

    function: Lifespan[Any] = field(compare=False)
    id: str = field(default_factory=new_id)
    """It is the same in the worker's child processes."""

    @property
    def name(self) -> str:
        """The module and the qualified name of its function."""
        function = self.function
        return f"{getattr(function, '__module__', None)}.{getattr(function, '__qualname__', type(function).__name__)}"


def checked_lifespan(function: object) -> GroupLifespan | None:
    """Return the lifespan of a group.

    Raises:
        DefinitionError: it is not a function without arguments, or lacks its decorator.
    """
    if function is None:
        return None
    if not callable(function):
        raise DefinitionError(f"lifespan must be a function that returns a context manager, got {function!r}")
    lifespan = GroupLifespan(cast("Lifespan[Any]", function))
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        decorator = "asynccontextmanager" if inspect.isasyncgenfunction(function) else "contextmanager"
        raise DefinitionError(f"lifespan {lifespan.name} must be decorated: write @{decorator} above it")
    if inspect.iscoroutinefunction(function):
        raise DefinitionError(f"lifespan {lifespan.name} must yield once: decorate it with @asynccontextmanager")
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise DefinitionError(f"lifespan {lifespan.name} must take no arguments: {error}") from None
    except ValueError:
        pass  # A function of an extension module may have no signature.
    return lifespan


def opened(lifespan: GroupLifespan) -> AbstractAsyncContextManager[Any] | AbstractContextManager[Any]:
    """Call the function of a lifespan, and return the context manager.

    Raises:
        LifespanError: it raised, or returned something else.
    """
    try:
        manager = lifespan.function()
    except Exception as error:
        raise entry_error(lifespan, error) from error
    if not isinstance(manager, AbstractAsyncContextManager | AbstractContextManager):
        raise LifespanError(
            f"the lifespan {lifespan.name} must return a context manager, got {type(manager).__name__}: decorate it "
            "with @asynccontextmanager or @contextmanager"
        )
    return manager


def entry_error(lifespan: GroupLifespan, error: BaseException) -> LifespanError:
    """Return the error of a lifespan that could not be entered."""
    return LifespanError(f"the lifespan {lifespan.name} could not be entered: {type(error).__name__}: {error}")


class EnteredLifespan:
    """One lifespan in one event loop. One task enters and leaves it, as task groups and timeouts in it need."""

    def __init__(self, lifespan: GroupLifespan) -> None:
        self.lifespan = lifespan
        self.resources: Any = None
        self._entered = asyncio.Event()
        self._leave = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def enter(self, on_early_end: Callable[[EnteredLifespan, BaseException | None], None]) -> None:
        """Enter it, and call ``on_early_end`` if it ends before it is left.

        Raises:
            LifespanError: it raised; its error is the cause.
        """
        running = forks.guarded(self._run)
        task = self._task = asyncio.create_task(running, name=f"queuert-lifespan-{self.lifespan.name}")
        entered = asyncio.ensure_future(self._entered.wait())
        try:
            await asyncio.wait({task, entered}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await ended_within(_AFTER_CANCEL, [task])
            raise
        finally:
            entered.cancel()
        if not self._entered.is_set():
            error = _error_of(task)
            if isinstance(error, LifespanError):
                raise error
            raise entry_error(self.lifespan, error or RuntimeError("it ended without a yield")) from error
        task.add_done_callback(lambda done: None if self._leave.is_set() else on_early_end(self, _error_of(done)))

    async def leave(self, seconds: float, hurry: asyncio.Event) -> BaseException | None:
        """Leave it, and return what it raised; after so many seconds, or 2 after ``hurry``, it is cancelled."""
        task = self._task
        if task is None or task.done():
            return None  # It has ended early, which is reported.
        self._leave.set()
        hurried = asyncio.ensure_future(hurry.wait())
        await asyncio.wait({task, hurried}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not task.done() and hurry.is_set():
            await ended_within(_AFTER_CANCEL, [task])
        if not task.done():
            task.cancel()
            await ended_within(_AFTER_CANCEL, [task])
            if not task.done() or task.cancelled():
                return TimeoutError(f"it did not end within {seconds:g} seconds, and was cancelled")
        return _error_of(task)

    async def _run(self) -> None:
        manager = opened(self.lifespan)
        try:
            if isinstance(manager, AbstractAsyncContextManager):
                async with manager as self.resources:
                    self._entered.set()
                    await self._leave.wait()
            else:
                await self._run_in_thread(manager)
        except (SystemExit, KeyboardInterrupt) as error:
            raise RuntimeError(f"the lifespan raised {type(error).__name__}: {error}") from error

    async def _run_in_thread(self, manager: AbstractContextManager[Any]) -> None:
        """Enter and leave a plain context manager in a thread of its own, since it may block."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()
        leave = threading.Event()

        def run() -> None:
            raised: BaseException | None = None
            generation = forks.generation
            try:
                with manager as self.resources:
                    if forks.generation != generation:
                        forks.end_child()
                    loop.call_soon_threadsafe(self._entered.set)
                    leave.wait()
            except BaseException as error:
                raised = error
            if forks.generation != generation:
                forks.end_child()
            with suppress(RuntimeError):  # The loop is closed, since the worker has stopped.
                loop.call_soon_threadsafe(_end, ended, raised)

        threading.Thread(target=run, name=f"queuert-lifespan-{self.lifespan.name}", daemon=True).start()
        waiting: asyncio.Future[Any] = asyncio.ensure_future(self._leave.wait())
        try:
            await asyncio.wait({ended, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            leave.set()
        await ended


class Lifespans:
    """The lifespans of a worker, one for each of its Processors that has one."""

    def __init__(self, lifespans: Iterable[GroupLifespan | None]) -> None:
        self._lifespans = list(dict.fromkeys(one for one in lifespans if one is not None))
        self._entered: dict[GroupLifespan, EnteredLifespan] = {}

    def __len__(self) -> int:
        return len(self._lifespans)

    async def enter(self, on_early_end: Callable[[EnteredLifespan, BaseException | None], None]) -> None:
        """Enter all, in order.

        Raises:
            LifespanError: one could not be entered. Those before it are entered: leave them.
        """
        for lifespan in self._lifespans:
            entered = EnteredLifespan(lifespan)
            await entered.enter(on_early_end)
            self._entered[lifespan] = entered

    async def leave(self, seconds: float, hurry: asyncio.Event) -> list[tuple[GroupLifespan, BaseException]]:
        """Leave all that are entered, the last one first, within so many seconds; return what they raised."""
        deadline = asyncio.get_running_loop().time() + seconds
        errors: list[tuple[GroupLifespan, BaseException]] = []
        while self._entered:
            lifespan, entered = self._entered.popitem()
            left = max(0.0, deadline - asyncio.get_running_loop().time())
            if (error := await entered.leave(left, hurry)) is not None:
                errors.append((lifespan, error))
        return errors

    def resources(self, lifespan: GroupLifespan | None) -> Any:
        """Return what a lifespan has yielded.

        Raises:
            DefinitionError: the processors have no lifespan.
        """
        entered = None if lifespan is None else self._entered.get(lifespan)
        if entered is None:
            raise no_resources() if lifespan is None else LifespanError(f"the lifespan {lifespan.name} has ended")
        return entered.resources


def no_resources() -> DefinitionError:
    """Return the error of a handler that reads resources which its processors do not have."""
    return DefinitionError("attempt.resources needs a lifespan: pass lifespan= to the Processors of this handler")


def _end(future: asyncio.Future[Any], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration):
        future.set_exception(error)
    else:
        future.set_exception(RuntimeError(f"the lifespan raised {type(error).__name__}: {error}"))


def _error_of(task: asyncio.Future[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()
