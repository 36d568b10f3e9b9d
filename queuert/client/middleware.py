"""Client middlewares, which wrap starts: for tenancy, default deduplication, tracing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeAlias

from queuert.errors import ClientMiddlewareError
from queuert.new_chain import NewChain

ClientMiddleware: TypeAlias = Callable[[Sequence[NewChain[Any]]], AbstractContextManager[Sequence[NewChain[Any]]]]
"""``@contextmanager def middleware(chains)``: yields the chains that are to be started, as many and in the same order.

It serves sync and async clients, and wraps what ``start_chain`` and ``start_chains`` start: not what a handler
continues with or waits for, and not the chains of recurring schedules, which workers start. ``NewChain.replace`` makes
a changed copy. The first middleware is the outermost: it receives the caller's chains; what the last one yields is
written.

It does not know the transaction: after its ``yield`` the chains are written, but with ``connection=`` they are
committed only when the caller commits. Code that must run after the commit belongs into an observer of
:class:`~queuert.observability.events.ChainStarted`, or after the caller's own commit.

What it raises before its ``yield`` reaches the caller, and nothing is written. An error of the start is raised at its
``yield`` and reaches the caller whatever the middleware does with it. What it raises after its ``yield`` reaches the
caller too, but the chains have been written by then::

    @contextmanager
    def in_tenant(chains: Sequence[NewChain[Any]]) -> Iterator[Sequence[NewChain[Any]]]:
        yield [chain.replace(limit_key=tenant.get()) for chain in chains]
"""


@contextmanager
def apply_middlewares(
    middlewares: Sequence[ClientMiddleware], chains: Sequence[NewChain[Any]]
) -> Iterator[Sequence[NewChain[Any]]]:
    """Yield the chains as the middlewares yield them, the first middleware outermost.

    Raises:
        ClientMiddlewareError: a middleware did not yield a sequence of as many chains.
    """
    start_error: BaseException | None = None
    with ExitStack() as stack:
        for middleware in middlewares:
            chains = _apply(middleware, chains, stack)
        try:
            yield chains
        except BaseException as error:
            start_error = error
            raise
    if start_error is not None:
        # A middleware swallowed the error, but there are no handles to return.
        raise start_error


def _apply(middleware: ClientMiddleware, chains: Sequence[NewChain[Any]], stack: ExitStack) -> Sequence[NewChain[Any]]:
    name = getattr(middleware, "__qualname__", repr(middleware))
    manager: Any = middleware(chains)
    if not (hasattr(type(manager), "__enter__") and hasattr(type(manager), "__exit__")):
        raise ClientMiddlewareError(
            f"client middleware {name} must return a context manager, got {type(manager).__name__}: use @contextmanager"
        )
    yielded: Any = stack.enter_context(manager)
    if not isinstance(yielded, Sequence) or not all(isinstance(chain, NewChain) for chain in yielded):
        raise ClientMiddlewareError(f"client middleware {name} must yield a sequence of NewChain")
    if len(yielded) != len(chains):
        raise ClientMiddlewareError(
            f"client middleware {name} must yield as many chains as it received ({len(chains)}), got {len(yielded)}"
        )
    return yielded
