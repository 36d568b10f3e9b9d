"""The contract of a state adapter.

Its operations are the methods of :class:`~queuert.state.AsyncStore` and of the generated ``Store``; their arguments and
results are in :mod:`queuert.state.types`. They take and return arrays, are atomic, use the store's clock, and take one
round trip however many jobs they handle. ``queuert.testing.conformance`` tests them for every store alike.

Inputs, outputs and errors of handlers and callers are JSON **text** here, encoded before and decoded after the
operation, so that a bad row fails one attempt and never stops a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from queuert.observability.adapter import Observers
from queuert.observability.events import StoreWarningRaised
from queuert.state.types import StoreWarning

if TYPE_CHECKING:
    from queuert.notify.adapter import NotifyAdapter
    from queuert.state.async_store import AsyncStore
    from queuert.state.sync_store import Store


class Capability(StrEnum):
    """A feature of a store beyond the common contract; using one that it lacks raises CapabilityMissingError."""

    USER_TRANSACTIONS = "user_transactions"
    """Starts and completions can be written in the caller's own transaction."""
    ROW_LOCKS = "row_locks"
    """A transaction that locks one job does not block the others."""
    MULTI_PROCESS = "multi_process"
    """Several processes can share the store."""
    EVENTS = "events"
    """All transitions of jobs are written to an event log."""


class StateAdapter(Protocol):
    """Opens a store of jobs. Clients and workers share one adapter, which returns a sync or async store to each."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The features of this store beyond the common contract."""
        ...

    def sync_store(self, *, max_connections: int = 4, answer_timeout: float | None = None) -> Store:
        """Return a new, unopened sync store of at most this many connections.

        ``answer_timeout`` shortens the seconds after which an operation gives up waiting for an answer.
        """
        ...

    def async_store(self, *, max_connections: int = 4) -> AsyncStore:
        """Return a new, unopened async store of at most this many connections."""
        ...

    def default_notify(self) -> NotifyAdapter:
        """Return the notify adapter that is used for this store by default."""
        ...


def emit_store_warnings(state: StateAdapter, risks: Sequence[StoreWarning], observers: Observers) -> None:
    """Emit an event for each risk that was found when a store of ``state`` was opened."""
    for risk in risks:
        observers.emit(StoreWarningRaised(adapter=type(state).__name__, risk=risk.name, advice=risk.advice))
