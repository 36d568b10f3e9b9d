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
from ipaddress import ip_address
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
    ORDERED_KEYS = "ordered_keys"
    """The chains of a key can run one after the other: ``Limits(ordered=True)``."""


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


NOT_ENCRYPTED = "not encrypted"
NOT_VERIFIED = "server not verified"


def is_remote(host: str) -> bool:
    """Whether an address or a host name belongs to another machine. Unix sockets are local.

    Names other than ``localhost`` are not resolved and count as remote.
    """
    if not host or host.startswith(("/", "@")) or host.lower() in ("localhost", "localhost."):
        return False
    try:
        address = ip_address(host.partition("%")[0].strip("[]"))
    except ValueError:
        return True
    mapped = getattr(address, "ipv4_mapped", None)
    return not (mapped or address).is_loopback


def tls_warnings(host: str, *, encrypted: bool, verified: bool, advice: str) -> tuple[StoreWarning, ...]:
    """Return the risk of a connection to ``host``, if it has one.

    Args:
        host: the address, or the name if the address is not known.
        encrypted: whether the connection is encrypted.
        verified: whether the server's certificate and its name were verified.
        advice: what to do about it, for this kind of store.
    """
    if not is_remote(host) or (encrypted and verified):
        return ()
    if not encrypted:
        return (StoreWarning(NOT_ENCRYPTED, f"payloads can be read on the network: {advice}"),)
    return (StoreWarning(NOT_VERIFIED, f"another server could impersonate this one: {advice}"),)
