"""Client middlewares, which wrap starts: for tenancy, default deduplication, tracing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeAlias

from queuert.errors import ClientMiddlewareError
from queuert.new_chain import NewChain

ClientMiddleware: TypeAlias = Callable[[Sequence[NewChain[Any]]], AbstractContextManager[Sequence[NewChain[Any]]]]
"""``@contextmanager def middleware(chains)``: yields the chains that are to be started, as many and in the same order.

It serves clients sync and async, and wraps what is started by ``start_chain`` and ``start_chains``: not what a handler
continues with or waits for, and not the chains of recurring schedules, which workers start. ``NewChain.replace`` makes
a changed copy. The first middleware is the outermost: it sees what the caller gave, the last one decides what is
checked and written.

It knows of no transaction: after its ``yield`` the chains are written, and where the start has a ``connection=`` of the
caller's they are committed when the caller commits, if at all. What must follow the commit belongs into an observer of
:class:`~queuert.observability.events.ChainStarted`, or after the caller's own commit.

What it raises before its ``yield`` reaches the caller, and nothing is written. An error of the start is raised at its
``yield`` and reaches the caller whatever the middleware does with it. What it raises after its ``yield`` reaches the
caller too, but the chains have been written by then::

    @contextmanager
    def in_tenant(chains: Sequence[NewChain[Any]]) -> Iterator[Sequence[NewChain[Any]]]:
        yield [chain.replace(limit_key=tenant.get()) for chain in chains]
"""


@contextmanager
def wrapped(
    middlewares: Sequence[ClientMiddleware], chains: Sequence[NewChain[Any]]
) -> Iterator[Sequence[NewChain[Any]]]:
    """Yields the chains as the middlewares yield them, the first middleware outermost.

    Raises:
        ClientMiddlewareError: a middleware did not yield a sequence of as many chains.
    """
    failure: BaseException | None = None
    with ExitStack() as stack:
        for middleware in middlewares:
            chains = _handed_on(middleware, chains, stack)
        try:
            yield chains
        except BaseException as error:
            failure = error
            raise
    if failure is not None:
        # A middleware swallowed the error, but there are no handles to return.
        raise failure


def _handed_on(
    middleware: ClientMiddleware, chains: Sequence[NewChain[Any]], stack: ExitStack
) -> Sequence[NewChain[Any]]:
    name = getattr(middleware, "__qualname__", repr(middleware))
    manager: Any = middleware(chains)
    if not (hasattr(type(manager), "__enter__") and hasattr(type(manager), "__exit__")):
        raise ClientMiddlewareError(
            f"client middleware {name} must return a context manager, got {type(manager).__name__}: use @contextmanager"
        )
    given: Any = stack.enter_context(manager)
    if not isinstance(given, Sequence) or not all(isinstance(one, NewChain) for one in given):
        raise ClientMiddlewareError(f"client middleware {name} must yield a sequence of NewChain")
    if len(given) != len(chains):
        raise ClientMiddlewareError(
            f"client middleware {name} must yield as many chains as it received ({len(chains)}), got {len(given)}"
        )
    return given
