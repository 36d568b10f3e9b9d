"""The contract of a state adapter: the values that go in and come out.

The operations themselves are the methods of :class:`~queuert.state.AsyncStore` and its generated twin ``Store``. They
take and return arrays, are atomic, use the store's clock, and cost one round trip however many jobs they are given.
``queuert.testing.conformance`` holds what they promise, for every store alike.

Everything that a handler or a caller wrote is JSON **text** here: encoded before it comes in, decoded after it went
out, so that one bad row is one failed attempt and never a dead loop.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from queuert.notify.adapter import NotifyAdapter
    from queuert.state.async_store import AsyncStore
    from queuert.state.sync_store import Store


class Capability(StrEnum):
    """What a store can do beyond the common contract; asking for what it cannot is a typed error."""

    USER_TRANSACTIONS = "user_transactions"
    """Starts and completions can join the caller's own transaction."""
    ROW_LOCKS = "row_locks"
    """A transaction that holds one job keeps nobody from the others."""
    MULTI_PROCESS = "multi_process"
    """Several processes can share the store."""
    EVENTS = "events"
    """What happens to jobs is kept in a log that can be read."""


class StateAdapter(Protocol):
    """Where jobs live. One object, shared by clients and workers; it makes a store in sync or async for each."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this store can do beyond the common contract."""
        ...

    def sync_store(self, *, max_connections: int = 4, answer_timeout: float | None = None) -> Store:
        """A new, unopened synchronous store of at most this many connections.

        ``answer_timeout`` shortens the seconds after which an operation gives up waiting for an answer.
        """
        ...

    def async_store(self, *, max_connections: int = 4) -> AsyncStore:
        """A new, unopened asynchronous store of at most this many connections."""
        ...

    def default_notify(self) -> NotifyAdapter:
        """The notify adapter that suits this store when the user names none."""
        ...


# --- start -----------------------------------------------------------------------------------------------------------


# --- claim, renew, release -------------------------------------------------------------------------------------------


# --- finish ----------------------------------------------------------------------------------------------------------


# --- reap, look ------------------------------------------------------------------------------------------------------
