"""Notifications within one process: for tests, and for a client and a worker that share an embedded store."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from queuert.notify.adapter import Notification, NotificationCallback, Subscription, Topic
from queuert.notify.fork_safety import reset_in_children
from queuert.notify.listener import Subscribers
from queuert.observability.adapter import Observers


class InProcessNotify:
    """Carries notifications between the clients and workers of this process that were given this very object.

    It has no thread: subscribers are called in the publisher's, before ``publish`` returns. What a subscriber
    publishes meanwhile is told next, when everybody has heard the notification before it, so that no call is ever
    nested. A forked child begins with an adapter that is closed and has no subscribers.

    Example:
        >>> notify = InProcessNotify()
        >>> notify.open(Observers())
        >>> subscription = notify.subscribe(Topic.CHAINS, lambda notification: print(sorted(notification.keys or ())))
        >>> notify.publish(Topic.CHAINS, ["order-17"])
        ['order-17']
    """

    def __init__(self) -> None:
        self.reset_after_fork()
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        """Forget everything, as a forked child must; not for use by others."""
        self._opened = 0
        self._lock = threading.RLock()
        self._subscribers = Subscribers()
        self._under_way = _UnderWay()

    def open(self, observers: Observers) -> None:
        """Begin. Counted: the last ``close`` ends it. There is nothing to observe here."""
        with self._lock:
            self._opened += 1

    def close(self) -> None:
        """End; nothing is ever pending. Too many closes do nothing, and ``open`` begins again."""
        with self._lock:
            self._opened = max(0, self._opened - 1)

    def publish(self, topic: Topic, keys: Iterable[str]) -> None:
        """Call every subscriber of the topic, now, in this thread. Does nothing while the adapter is not open."""
        notification = Notification(topic, frozenset(keys))
        if not notification.keys or not self._opened:
            return
        waiting = self._under_way.notifications
        waiting.append(notification)
        if len(waiting) > 1:
            return  # This is a subscriber's own notification: the publisher that called it goes on with it.
        try:
            while waiting:
                self._subscribers.dispatch(waiting[0])
                waiting.popleft()
        finally:
            waiting.clear()

    def subscribe(self, topic: Topic, callback: NotificationCallback) -> Subscription:
        """Call ``callback`` with every notification of the topic, in the thread that publishes it: be quick.

        What it raises goes to the log ``queuert.notify`` and disturbs nobody.
        """
        return self._subscribers.add(topic, callback)

    @property
    def healthy(self) -> bool:
        """Whether the adapter is open."""
        return self._opened > 0


class _UnderWay(threading.local):
    """The notifications that this thread is about to tell; the first one is being told."""

    def __init__(self) -> None:
        self.notifications: deque[Notification] = deque()
