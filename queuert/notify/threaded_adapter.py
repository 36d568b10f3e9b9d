"""What adapters with a listening thread have in common: opening, closing, forking; the work is the listener's."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from queuert.notify.adapter import NotificationCallback, Subscription, Topic
from queuert.notify.fork_safety import reset_in_children
from queuert.notify.listener_thread import Listener
from queuert.notify.subscribers import Subscribers
from queuert.observability.adapter import Observers

# A child's copies of its parent's listeners. Kept, since collecting one could say good-bye on the parent's socket.
_inherited: list[Listener] = []


class ListeningNotify:
    """A notify adapter that is one thread while it is open. A forked child begins with one that is closed."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._begin()
        reset_in_children(self)

    def _begin(self) -> None:
        self._opened = 0
        # Re-entrant, because the garbage collector may close a client, and so this, anywhere.
        self._lock = threading.RLock()
        self._subscribers = Subscribers(self._look_again)

    def _new_listener(self, subscribers: Subscribers) -> Listener:
        raise NotImplementedError

    def reset_after_fork(self) -> None:
        """Forget everything, as a forked child must; not for use by others."""
        if self._listener is not None:
            _inherited.append(self._listener)
            self._listener = None
        self._begin()

    def open(self, observers: Observers) -> None:
        """Begin to connect, in the background. Counted: the last ``close`` ends it.

        It does not wait and does not fail: a server that cannot be reached is an event, told to all observers given
        so far, and is tried again.
        """
        with self._lock:
            self._opened += 1
            if self._listener is None:
                self._listener = self._new_listener(self._subscribers)
                self._listener.tell(observers)
                self._listener.start()
            else:
                self._listener.tell(observers)

    def close(self) -> None:
        """Send what is pending and disconnect, within a second. Too many closes do nothing; ``open`` begins again."""
        with self._lock:
            self._opened = max(0, self._opened - 1)
            if self._opened:
                return
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()

    def publish(self, topic: Topic, keys: Iterable[str]) -> None:
        """Send a notification at once, or together with others as soon as the connection is free, each key once.

        Never blocks, never raises. While the connection is lost a bounded number of notifications is kept; more than
        that become one notification to look at everything. Does nothing while the adapter is not open.
        """
        listener = self._listener
        if listener is not None:
            listener.publish(topic, keys)

    def subscribe(self, topic: Topic, callback: NotificationCallback) -> Subscription:
        """Call ``callback`` with every notification of the topic, from the adapter's thread: be quick.

        It is called once with ``keys=None`` when listening has begun, and after each loss of the connection: look
        then for what was missed. What it raises goes to the log ``queuert.notify`` and disturbs nobody. Subscribing
        is possible before ``open``, and outlasts ``close``.
        """
        return self._subscribers.add(topic, callback)

    @property
    def healthy(self) -> bool:
        """Whether notifications arrive at present. Where they do not, sleepers poll more often."""
        listener = self._listener
        return listener is not None and listener.healthy

    def _look_again(self) -> None:
        listener = self._listener
        if listener is not None:
            listener.look_again()
