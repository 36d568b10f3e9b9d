"""Those who are called when a notification arrives, and the rule that none of them can hurt another."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from queuert.notify.adapter import Notification, NotificationCallback, Subscription, Topic

_logger = logging.getLogger("queuert.notify")


class Subscribers:
    """A list of callbacks for each topic; every method may be called from any thread, and from a callback."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """``on_change`` is called when a topic gets its first subscriber, or loses its last."""
        self._on_change = on_change
        # Tuples, replaced as a whole: whoever calls them holds no lock, and sees no change under way.
        self._callbacks: dict[Topic, tuple[_Place, ...]] = {}
        self._lock = threading.RLock()

    def add(self, topic: Topic, callback: NotificationCallback) -> Subscription:
        """Put a callback on the topic's list; one that is added twice is called twice."""
        place = _Place(self, topic, callback)
        with self._lock:
            before = self._callbacks.get(topic, ())
            self._callbacks[topic] = (*before, place)
        if not before:
            self._on_change()
        return place

    def topics(self) -> frozenset[Topic]:
        """The topics that somebody wants to hear of."""
        with self._lock:
            return frozenset(self._callbacks)

    def dispatch(self, notification: Notification) -> None:
        """Call everybody on the topic's list; who raises is written to the log ``queuert.notify``."""
        for place in self._callbacks.get(notification.topic, ()):
            try:
                place.call(notification)
            except Exception:
                _logger.exception("a subscriber of %s notifications raised", notification.topic.value)

    def remove(self, place: _Place) -> None:
        """Take a place off its list, if it is there."""
        with self._lock:
            before = self._callbacks.get(place.topic, ())
            after = tuple(other for other in before if other is not place)
            if after:
                self._callbacks[place.topic] = after
            else:
                self._callbacks.pop(place.topic, None)
        if before and not after:
            self._on_change()


class _Place:
    def __init__(self, subscribers: Subscribers, topic: Topic, callback: NotificationCallback) -> None:
        self.topic = topic
        self._subscribers = subscribers
        self._callback: NotificationCallback | None = callback

    def call(self, notification: Notification) -> None:
        callback = self._callback
        if callback is not None:
            callback(notification)

    def close(self) -> None:
        """Leave; a call that has begun already may still be under way in the adapter's thread."""
        self._callback = None  # A round that began before may still hold this place.
        self._subscribers.remove(self)
