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
    """Carries notifications between the clients and workers of this process that share this object.

    It has no thread: subscribers are called in the thread of the publisher, before ``publish`` returns. What a
    subscriber publishes meanwhile is dispatched next, so calls are never nested. In a forked child the adapter is
    closed and has no subscribers.

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
        """Return to the state of a new adapter. Called in forked children only."""
        self._open_count = 0
        self._lock = threading.RLock()
        self._subscribers = Subscribers()
        self._queue = _DispatchQueue()

    def open(self, observers: Observers) -> None:
        """Open the adapter. Calls are counted: as many calls of ``close`` close it. It emits no events."""
        with self._lock:
            self._open_count += 1

    def close(self) -> None:
        """Close the adapter. Calls beyond those of ``open`` do nothing; it can be opened again."""
        with self._lock:
            self._open_count = max(0, self._open_count - 1)

    def publish(self, topic: Topic, keys: Iterable[str]) -> None:
        """Call each subscriber of the topic, now, in this thread. It does nothing while the adapter is closed."""
        notification = Notification(topic, frozenset(keys))
        if not notification.keys or not self._open_count:
            return
        queue = self._queue.notifications
        queue.append(notification)
        if len(queue) > 1:
            return  # A subscriber publishes: the call of ``publish`` that called it dispatches this one, too.
        try:
            while queue:
                self._subscribers.dispatch(queue[0])
                queue.popleft()
        finally:
            queue.clear()

    def subscribe(self, topic: Topic, callback: NotificationCallback) -> Subscription:
        """Call ``callback`` with each notification of the topic, in the thread that publishes it. It must not block.

        What it raises is written to the log ``queuert.notify``, and other callbacks are called.
        """
        return self._subscribers.add(topic, callback)

    @property
    def healthy(self) -> bool:
        """Whether the adapter is open."""
        return self._open_count > 0


class _DispatchQueue(threading.local):
    """The notifications that this thread has published and not dispatched; the first is being dispatched."""

    def __init__(self) -> None:
        self.notifications: deque[Notification] = deque()
