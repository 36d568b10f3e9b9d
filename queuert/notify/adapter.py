"""How sleepers are woken: the contract of a notify adapter.

A notification is a notification and nothing else. Everything works without it, only later, by polling; whoever gets
one looks
for himself. So a notification may be late, doubled, lost, or say less than it knows, and nobody may rely on its text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias, cast

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


class PiggybackNotification(Protocol):
    """A notification about what is yet to be written. The store that writes it may send it along, right behind the
    write.

    A store that cannot leaves it alone, and it is published afterwards. It is for one write, in one thread.
    """

    @property
    def arrived(self) -> bool:
        """It was sent along: there is nothing to publish."""
        ...

    def depart(self, place: object) -> tuple[str, str] | None:
        """Channel and text to send behind a write to this place; None if it is to be published as ever.

        It counts as sent from now on, for when the next notifications go out.
        """
        ...

    def arrive(self) -> None:
        """The server has taken it."""
        ...


def piggyback_notification(adapter: NotifyAdapter, topic: Topic, keys: Iterable[str]) -> PiggybackNotification | None:
    """A notification that has yet to be sent, by a store or by ``publish``; None where the adapter leaves no
    notifications to stores.

    One that does has a method of this name. ``isinstance`` with a protocol would take a hundredth of a start.
    """
    make = getattr(adapter, "piggyback_notification", None)
    return None if make is None else cast("PiggybackNotification", make(topic, keys))
