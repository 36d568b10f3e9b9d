"""Middlewares wrap each attempt as an onion: before 1, before 2, handler, after 2, after 1."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from queuert.errors import DefinitionError
from queuert.worker.executors import Executor
from queuert.worker.transaction_blocks import GuardedTransaction

if TYPE_CHECKING:
    from queuert.worker.attempt import Attempt
    from queuert.worker.transaction_blocks import Transaction

CallNext: TypeAlias = Callable[[], Awaitable[Any]]
"""Runs the rest of the onion; returns the handler's outcome or raises what it raised."""

MiddlewareFunction: TypeAlias = "Callable[[Attempt[Any, Any], CallNext], Awaitable[Any]]"
"""``async def middleware(attempt, call_next)``: as :meth:`AttemptMiddleware.around_handler`."""

Phase: TypeAlias = Literal["prepare", "complete"]


class AttemptMiddleware:
    """Wraps attempts in up to three phases: make a subclass and override what you need.

    Around the handler alone a function will do, ``async def middleware(attempt, call_next)``. The first middleware is
    the outermost, in each phase::

        class Tenancy(AttemptMiddleware):
            async def around_handler(self, attempt, call_next):
                attempt.context.set(TENANT, tenant_of(attempt.input))
                return await call_next()

            @asynccontextmanager
            async def around_complete(self, attempt, tx):
                await tx.connection.execute("select set_config('app.tenant', %s, true)", [attempt.context[TENANT]])
                yield

    Coroutines enter ``around_prepare`` and ``around_complete``, plain functions their twins ``..._in_thread``. Where a
    handler needs the twin that is missing it is refused when it is registered; so is one in a child process, which can
    have neither.
    """

    async def around_handler(self, attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        """Around the whole attempt: await ``call_next()`` once, and return its outcome or another.

        It runs in the event loop also where the handler runs in a thread; context variables that it sets are seen
        there. What it raises is a failed attempt, as if the handler had raised it.
        """
        return await call_next()

    def around_prepare(self, attempt: Attempt[Any, Any], tx: GuardedTransaction) -> AbstractAsyncContextManager[Any]:
        """An asynchronous context manager inside the transaction of ``attempt.prepare()``.

        It is entered right after the transaction began and left before it commits. What it raises rolls it back and is
        a failed attempt; it cannot swallow what the block raised.
        """
        return nullcontext()

    def around_prepare_in_thread(
        self, attempt: Attempt[Any, Any], tx: GuardedTransaction
    ) -> AbstractContextManager[Any]:
        """As ``around_prepare``, for plain functions."""
        return nullcontext()

    def around_complete(self, attempt: Attempt[Any, Any], tx: Transaction[Any]) -> AbstractAsyncContextManager[Any]:
        """An asynchronous context manager inside the transaction of ``attempt.complete()``, as ``around_prepare``.

        The finish is written after it is left. Outcomes that a handler returns are written without it.
        """
        return nullcontext()

    def around_complete_in_thread(
        self, attempt: Attempt[Any, Any], tx: Transaction[Any]
    ) -> AbstractContextManager[Any]:
        """As ``around_complete``, for plain functions."""
        return nullcontext()


Middleware: TypeAlias = "AttemptMiddleware | MiddlewareFunction"
"""Either form."""


# --- around the handler -----------------------------------------------------------------------------------------------


def wrapped(middlewares: Sequence[Middleware], attempt: Attempt[Any, Any], handler: CallNext) -> CallNext:
    """The handler inside its middlewares, the first one outermost."""
    for middleware in reversed(middlewares):
        around = middleware.around_handler if isinstance(middleware, AttemptMiddleware) else middleware
        handler = _layer(around, attempt, handler)
    return handler


def _layer(around: MiddlewareFunction, attempt: Attempt[Any, Any], inner: CallNext) -> CallNext:
    async def layer() -> Any:
        return await around(attempt, inner)

    return layer


# --- inside transactions ----------------------------------------------------------------------------------------------


class PhaseMiddlewares:
    """The middlewares of an attempt in one phase: the surroundings of its block."""

    def __init__(self, middlewares: Iterable[Middleware], attempt: Attempt[Any, Any], phase: Phase) -> None:
        self._middlewares = [one for one in middlewares if isinstance(one, AttemptMiddleware)]
        self._attempt = attempt
        self._phase: Phase = phase

    def layers(self, transaction: Any) -> list[AbstractAsyncContextManager[Any]]:
        """For a coroutine, the outermost first."""
        return self._made(_method(self._phase, in_thread=False), transaction)

    def layers_in_thread(self, transaction: Any) -> list[AbstractContextManager[Any]]:
        """For a thread, the outermost first."""
        return self._made(_method(self._phase, in_thread=True), transaction)

    def _made(self, name: str, transaction: Any) -> list[Any]:
        found = []
        for one in self._middlewares:
            if _overrides(one, name):
                found.append(getattr(one, name)(self._attempt, transaction))
            elif _overrides(one, twin := _twin(name)):
                # A plain function that returned a coroutine, or the like: not known when it was registered.
                raise _missing_twin(one, twin, name)
        return found


def _method(phase: str, *, in_thread: bool) -> str:
    return f"around_{phase}_in_thread" if in_thread else f"around_{phase}"


def _twin(name: str) -> str:
    return name.removesuffix("_in_thread") if name.endswith("_in_thread") else f"{name}_in_thread"


def _overrides(middleware: AttemptMiddleware, name: str) -> bool:
    return getattr(type(middleware), name) is not getattr(AttemptMiddleware, name)


def _missing_twin(middleware: AttemptMiddleware, found: str, missing: str) -> DefinitionError:
    kind = type(middleware).__name__
    return DefinitionError(f"{kind} has {found}, which is not entered here: override {missing} as well")


# --- checks of a definition -------------------------------------------------------------------------------------------


def check_middlewares(job_type: str, middlewares: Iterable[Middleware], executor: Executor) -> None:
    """Raise DefinitionError if a middleware is none, or would be left out around this handler without a word."""
    for one in middlewares:
        if isinstance(one, AttemptMiddleware):
            _check_phases(job_type, one, executor)
        elif isinstance(one, type) or not callable(one):
            raise DefinitionError(f"a middleware of {job_type!r} is {one!r}: a function, or a made AttemptMiddleware")


def _check_phases(job_type: str, middleware: AttemptMiddleware, executor: Executor) -> None:
    for phase in ("prepare", "complete"):
        used, other = _method(phase, in_thread=False), _method(phase, in_thread=True)
        if executor is not Executor.COROUTINE:
            used, other = other, used
        has_used, has_other = _overrides(middleware, used), _overrides(middleware, other)
        where = f"a middleware of {job_type!r}, {type(middleware).__name__},"
        if executor is Executor.PROCESS and (has_used or has_other):
            raise DefinitionError(f"{where} has {used if has_used else other}: it cannot enter a child process")
        if has_other and not has_used:
            raise DefinitionError(f"{where} has {other}, and the handler is a {executor}: override {used} as well")
        for name in (used, other):
            function = getattr(type(middleware), name)
            if any(is_bare(function) for is_bare in _WITHOUT_DECORATOR):
                raise DefinitionError(f"{where} has {name} without @contextmanager or @asynccontextmanager")


_WITHOUT_DECORATOR = (inspect.isasyncgenfunction, inspect.isgeneratorfunction, inspect.iscoroutinefunction)


def check_required(group: object, middlewares: Sequence[object], required: Sequence[object]) -> None:
    """Raise DefinitionError unless the middlewares of a group have the required ones among them, in their order."""
    missing = [one for one in required if not any(found is one for found in middlewares)]
    if missing:
        raise DefinitionError(f"{group!r} lacks the required middlewares {', '.join(map(_name, missing))}: add them")
    rest = iter(middlewares)
    if not all(any(found is one for found in rest) for one in required):
        raise DefinitionError(f"{group!r} has its middlewares in another order than {', '.join(map(_name, required))}")


def _name(middleware: object) -> str:
    return str(getattr(middleware, "__qualname__", None) or type(middleware).__qualname__)
