"""The contract of a notify adapter, which carries notifications between processes.

A notification says that something may have happened. It may be late, doubled or lost, and it may name less than
happened. So whoever receives one reads the store. Without notifications everything works, only later, by polling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from queuert.observability.adapter import Observers


class Topic(StrEnum):
    """What a notification is about; the meaning of its keys."""

    JOBS = "jobs"
    """Jobs of these types became due, or got a time."""
    CHAINS = "chains"
    """The chains of these ids closed."""
    LEASES = "leases"
    """The leases of the jobs of these ids were taken away."""
    BULK_OPERATIONS = "bulk_operations"
    """The bulk operations of these ids were started."""


@dataclass(frozen=True, slots=True)
class Notification:
    """Something happened to ``keys``. None stands for all keys: there were too many, or the connection was lost."""

    topic: Topic
    keys: frozenset[str] | None


NotificationCallback: TypeAlias = Callable[[Notification], None]


class Subscription(Protocol):
    """A callback that receives the notifications of a topic."""

    def close(self) -> None:
        """Unsubscribe. Idempotent, and safe at any time, also after the adapter was closed."""
        ...


class PiggybackAdapter(Protocol):
    """An adapter whose notifications a store can send right behind a write, in the same round trip."""

    def piggyback(self, topic: Topic, keys: Iterable[str], address: object) -> tuple[str, str] | None:
        """Return the channel and the text of a notification that the caller sends itself; None if it must be published.

        ``address`` is that of the store. Call it just before the write: notifications that follow are delayed.
        """
        ...


class NotifyAdapter(Protocol):
    """Carries notifications between processes. One object can serve several clients and workers of a process."""

    def open(self, observers: Observers) -> None:
        """Begin to connect. Calls are counted: as many calls of ``close`` end it. It never waits, and never fails."""
        ...

    def close(self) -> None:
        """Send what is pending, and disconnect, within a second. Calls beyond those of ``open`` do nothing."""
        ...

    def publish(self, topic: Topic, keys: Iterable[str]) -> None:
        """Send a notification soon, together with others, each key once. It never blocks, and never raises."""
        ...

    def subscribe(self, topic: Topic, callback: NotificationCallback) -> Subscription:
        """Call ``callback`` with each notification of the topic, from a thread of the adapter. It must not block.

        When the connection is lost, and when it is restored, it is called with ``keys=None``. What it raises is logged,
        and other callbacks are called.
        """
        ...

    @property
    def healthy(self) -> bool:
        """Whether notifications arrive now. While they do not, clients and workers poll more often."""
        ...
