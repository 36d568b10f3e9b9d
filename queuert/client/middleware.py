"""Client middlewares wrap starts: tenancy, default deduplication, tracing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeAlias

from queuert.client.starts import NewChain

ClientMiddleware: TypeAlias = Callable[[Sequence[NewChain[Any]]], AbstractContextManager[Sequence[NewChain[Any]]]]
"""``@contextmanager def middleware(chains)``: yields the chains that are to be started, as many and in the same order.

It serves clients of both colours. What it raises before its ``yield`` reaches the caller, and nothing is written; an
error of the start is raised at its ``yield``::

    @contextmanager
    def in_tenant(chains: Sequence[NewChain[Any]]) -> Iterator[Sequence[NewChain[Any]]]:
        yield [chain.replace(limit_key=tenant.get()) for chain in chains]
"""


@contextmanager
def wrapped(
    middlewares: Sequence[ClientMiddleware], chains: Sequence[NewChain[Any]]
) -> Iterator[Sequence[NewChain[Any]]]:
    """The chains as the middlewares hand them inward, the first one outermost."""
    with ExitStack() as stack:
        for middleware in middlewares:
            chains = stack.enter_context(middleware(chains))
        yield chains
