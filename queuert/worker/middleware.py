"""Middlewares, which wrap each attempt: before 1, before 2, handler, after 2, after 1."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from typing import Any, TypeAlias, cast, get_args

from queuert.errors import DefinitionError
from queuert.worker import forks
from queuert.worker.attempt import Attempt
from queuert.worker.executors import Executor
from queuert.worker.handler_signature import function_of, name_of
from queuert.worker.transaction_blocks import GuardedTransaction, Transaction, WrappedBlock

CallNext: TypeAlias = Callable[[], Awaitable[Any]]
"""Runs the inner middlewares and the handler; returns the handler's outcome, or raises what it raised."""

MiddlewareFunction: TypeAlias = Callable[[Attempt[Any, Any], CallNext], Awaitable[Any]]
"""``async def middleware(attempt, call_next)``: as :meth:`AttemptMiddleware.around_handler`."""


class AttemptMiddleware:
    """Wraps the handler, and its ``prepare()`` and ``complete()`` blocks. Make a subclass and override what you need.

    To wrap only the handler, a function is enough: ``async def middleware(attempt, call_next)``. The first middleware
    is the outermost::

        class Tenancy(AttemptMiddleware):
            async def around_handler(self, attempt, call_next):
                attempt.context.set(TENANT, tenant_of(attempt.input))
                return await call_next()

            @asynccontextmanager
            async def around_complete(self, attempt, tx):
                await tx.connection.execute("select set_config('app.tenant', %s, true)", [attempt.context[TENANT]])
                yield

    Coroutines enter ``around_prepare`` and ``around_complete``, plain functions the methods ``..._sync``. A
    handler whose middleware has only the other one is rejected when it is registered. So is a handler in a child
    process, which can have neither.
    """

    async def around_handler(self, attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        """Wrap the handler: await ``call_next()`` once, and return its outcome or another.

        It runs in the event loop, also if the handler runs in a thread, which gets the context variables that it sets.
        If it raises, the attempt fails, as if the handler had raised.
        """
        return await call_next()

    def around_prepare(self, attempt: Attempt[Any, Any], tx: GuardedTransaction) -> AbstractAsyncContextManager[Any]:
        """Return an asynchronous context manager inside the transaction of ``attempt.prepare()``.

        It is entered right after the transaction began, and left before the commit. If it raises, the transaction is
        rolled back, and the attempt fails; it cannot suppress what the block raised.
        """
        return nullcontext()

    def around_prepare_sync(self, attempt: Attempt[Any, Any], tx: GuardedTransaction) -> AbstractContextManager[Any]:
        """``around_prepare`` for plain functions."""
        return nullcontext()

    def around_complete(self, attempt: Attempt[Any, Any], tx: Transaction[Any]) -> AbstractAsyncContextManager[Any]:
        """Return an asynchronous context manager inside the transaction of ``attempt.complete()``.

        It is entered and left as that of ``around_prepare``, and the finish is written after it is left. Outcomes that
        a handler returns without ``complete()`` are written without it.
        """
        return nullcontext()

    def around_complete_sync(self, attempt: Attempt[Any, Any], tx: Transaction[Any]) -> AbstractContextManager[Any]:
        """``around_complete`` for plain functions."""
        return nullcontext()


Middleware: TypeAlias = AttemptMiddleware | MiddlewareFunction
"""An instance of a subclass, or a function."""


# --- around the handler -----------------------------------------------------------------------------------------------


def compose(middlewares: Sequence[Middleware], attempt: Attempt[Any, Any], handler: CallNext) -> CallNext:
    """Return the handler wrapped in its middlewares, the first one outermost."""
    for middleware in reversed(middlewares):
        around = middleware.around_handler if isinstance(middleware, AttemptMiddleware) else middleware
        handler = _layer(around, attempt, handler)
    return handler


def _layer(around: MiddlewareFunction, attempt: Attempt[Any, Any], inner: CallNext) -> CallNext:
    async def layer() -> Any:
        generation = forks.generation
        made: list[Any] = []

        def call_next() -> Awaitable[Any]:
            made.append(inner())
            return cast("Awaitable[Any]", made[-1])

        try:
            returned = around(attempt, call_next)
            if not inspect.isawaitable(returned):
                raise _no_coroutine(around, returned)
            outcome = await returned
            if _close_unstarted(made):
                # The handler would be left out without a word.
                raise DefinitionError(
                    f"the middleware {name_of(around)} has called call_next() and never awaited it: write "
                    "return await call_next()"
                )
            return outcome
        finally:
            if forks.generation != generation:
                forks.end_child()
            _close_unstarted(made)

    return layer


def _close_unstarted(made: list[Any]) -> bool:
    """Close the coroutines that a middleware has not awaited, and return whether there were any."""
    left = [one for one in made if inspect.getcoroutinestate(one) == inspect.CORO_CREATED]
    for coroutine in left:
        coroutine.close()
    return bool(left)


def _no_coroutine(around: MiddlewareFunction, returned: object) -> DefinitionError:
    return DefinitionError(
        f"the middleware {name_of(around)} must be a coroutine function, but its call returned "
        f"{type(returned).__name__}: write async def, and return await call_next()"
    )


# --- inside transactions ----------------------------------------------------------------------------------------------


class BlockMiddlewares:
    """The middlewares of an attempt around one of its blocks."""

    def __init__(self, middlewares: Iterable[Middleware], attempt: Attempt[Any, Any], block: WrappedBlock) -> None:
        self._middlewares = [middleware for middleware in middlewares if isinstance(middleware, AttemptMiddleware)]
        self._attempt = attempt
        self._block: WrappedBlock = block

    def layers(self, transaction: Any) -> list[AbstractAsyncContextManager[Any]]:
        """Return the context managers for a coroutine, the outermost first."""
        return self._make_layers(_method(self._block, in_thread=False), transaction)

    def layers_in_thread(self, transaction: Any) -> list[AbstractContextManager[Any]]:
        """Return the context managers for a thread, the outermost first."""
        return self._make_layers(_method(self._block, in_thread=True), transaction)

    def _make_layers(self, name: str, transaction: Any) -> list[Any]:
        layers = []
        for middleware in self._middlewares:
            if _overrides(middleware, name):
                layers.append(_checked_layer(middleware, name, getattr(middleware, name)(self._attempt, transaction)))
            elif _overrides(middleware, other := _other_mode(name)):
                # For example a plain function that returned a coroutine, which was not known when it was registered.
                raise _missing_method(middleware, other, name)
        return layers


def _method(block: str, *, in_thread: bool) -> str:
    return f"around_{block}_sync" if in_thread else f"around_{block}"


def _other_mode(name: str) -> str:
    return name.removesuffix("_sync") if name.endswith("_sync") else f"{name}_sync"


def _overrides(middleware: AttemptMiddleware, name: str) -> bool:
    return getattr(type(middleware), name) is not getattr(AttemptMiddleware, name)


def _checked_layer(middleware: AttemptMiddleware, name: str, layer: Any) -> Any:
    """Return what a method of a middleware has returned, if its block can enter it."""
    in_thread = name.endswith("_sync")
    if isinstance(layer, AbstractContextManager if in_thread else AbstractAsyncContextManager):
        return layer
    if inspect.iscoroutine(layer):
        layer.close()
    kind = "a context manager" if in_thread else "an asynchronous context manager"
    raise DefinitionError(
        f"{type(middleware).__name__}.{name} must return {kind}, got {type(layer).__name__}: write {_decorator(name)}"
    )


def _decorator(name: str) -> str:
    """How a method of this name is written."""
    return "@contextmanager, def" if name.endswith("_sync") else "@asynccontextmanager, async def"


def _missing_method(middleware: AttemptMiddleware, existing: str, missing: str) -> DefinitionError:
    kind = type(middleware).__name__
    return DefinitionError(f"{kind} has {existing}, which is not entered here: override {missing} as well")


# --- checks of a definition -------------------------------------------------------------------------------------------


def checked_middlewares(of: str, middlewares: object) -> tuple[Middleware, ...]:
    """Return the middlewares that were passed for a group of processors, or for a handler.

    Raises:
        DefinitionError: one of them certainly cannot be called as a middleware; the message says why.
    """
    if not isinstance(middlewares, Iterable):
        raise DefinitionError(f"middlewares of {of} must be a sequence, got {middlewares!r}: write middlewares=[...]")
    given = tuple(middlewares)
    for middleware in given:
        if isinstance(middleware, AttemptMiddleware):
            _check_function(of, middleware.around_handler)
        elif isinstance(middleware, type) or not callable(middleware):
            raise DefinitionError(
                f"middlewares of {of} must be functions or instances of AttemptMiddleware, got {middleware!r}"
            )
        else:
            _check_function(of, middleware)
    return given


def _check_function(of: str, middleware: Callable[..., Any]) -> None:
    what = f"the middleware {name_of(middleware)} of {of}"
    function = function_of(middleware)
    # A plain function may return the coroutine of another one: what it returns is checked when it is called.
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(
            f"{what} must be a coroutine function, but it is a generator: write async def, and return await call_next()"
        )
    if hasattr(middleware, "__signature__"):
        return  # A decorator has written it; it need not be what the call accepts.
    try:
        signature = inspect.signature(middleware, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise DefinitionError(
            f"{what} must take two arguments, but its parameters are {signature} ({error}): write "
            "async def middleware(attempt, call_next)"
        ) from None


def check_middlewares(job_type: str, middlewares: Iterable[Middleware], executor: Executor) -> None:
    """Raise DefinitionError if a middleware has only methods that this handler would not enter."""
    for middleware in middlewares:
        if isinstance(middleware, AttemptMiddleware):
            _check_blocks(job_type, middleware, executor)


def _check_blocks(job_type: str, middleware: AttemptMiddleware, executor: Executor) -> None:
    for block in get_args(WrappedBlock):
        used, other = _method(block, in_thread=False), _method(block, in_thread=True)
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
            if getattr(function, "__code__", None) is _CODE_OF_THE_OTHER[name.endswith("_sync")]:
                of_other, _, _ = _decorator(_other_mode(name)).partition(",")
                who = "plain functions" if name.endswith("_sync") else "coroutines"
                raise DefinitionError(f"{where} has {name} by {of_other}, but {who} enter it: write {_decorator(name)}")


_WITHOUT_DECORATOR = (inspect.isasyncgenfunction, inspect.isgeneratorfunction, inspect.iscoroutinefunction)

# The decorators return a function of their own, whose code tells which of them it was. What another decorator returns
# is looked at when it is called.
_DECORATED: Any = iter
_CODE_OF_THE_OTHER = {True: asynccontextmanager(_DECORATED).__code__, False: contextmanager(_DECORATED).__code__}
"""By whether plain functions enter it: the code of what the wrong decorator makes."""


def check_required(group: object, middlewares: Sequence[object], required: Sequence[object]) -> None:
    """Raise DefinitionError unless the middlewares of a group have the required ones among them, in their order."""
    missing = [middleware for middleware in required if not any(each is middleware for each in middlewares)]
    if missing:
        raise DefinitionError(f"{group!r} lacks the required middlewares {', '.join(map(_name, missing))}: add them")
    rest = iter(middlewares)
    if not all(any(each is middleware for each in rest) for middleware in required):
        raise DefinitionError(f"{group!r} has its middlewares in another order than {', '.join(map(_name, required))}")


def _name(middleware: object) -> str:
    return str(getattr(middleware, "__qualname__", None) or type(middleware).__qualname__)
