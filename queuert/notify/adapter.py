"""How sleepers are woken: the contract of a notify adapter.

A notification is a notification and nothing else. Everything works without it, only later, by polling; whoever gets
one looks
for himself. So a notification may be late, doubled, lost, or say less than it knows, and nobody may rely on its text.
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


@dataclass(frozen=True, slots=True)
class Notification:
    """Something happened to ``keys``; None means that anything may have: the connection was lost, or they are many."""

    topic: Topic
    keys: frozenset[str] | None


NotificationCallback: TypeAlias = Callable[[Notification], None]


class Subscription(Protocol):
    """A place in the list of those who are called."""

    def close(self) -> None:
        """Leave. Idempotent, safe at any time, also after the adapter was closed."""
        ...


class NotifyAdapter(Protocol):
    """Carries notifications between processes. One object can serve several clients and workers of a process."""

    def open(self, observers: Observers) -> None:
        """Begin. Counted: the last ``close`` ends it. Does not wait for a connection, and does not fail without one."""
        ...

    def close(self) -> None:
        """End, after a last try to send what is pending (at most a second). Too many closes do nothing."""
        ...

    def publish(self, topic: Topic, keys: Iterable[str]) -> None:
        """Send a notification soon. Never blocks, never raises; notifications of a moment are sent together, each key
        once."""
        ...

    def subscribe(self, topic: Topic, callback: NotificationCallback) -> Subscription:
        """Call ``callback`` with every notification of the topic, from a thread of the adapter: be quick, hand it over.

        When the connection is lost, and when it is back, it is called with ``keys=None``. What it raises is told and
        disturbs nobody.
        """
        ...

    @property
    def healthy(self) -> bool:
        """Whether notifications arrive at present. Where they do not, sleepers poll more often."""
        ...
