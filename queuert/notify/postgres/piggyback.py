"""Notifications that travel behind the write that they tell of, on its connection: nobody has to be woken to send
them."""

from __future__ import annotations

import time
from collections.abc import Callable

from queuert.notify.adapter import Topic
from queuert.notify.encoding import WILDCARD, encode
from queuert.notify.postgres.throttle import NotifyThrottle
from queuert.state.postgres.settings import Place


class PostgresPiggybackNotification:
    """One notification, for a store that writes to the place where the adapter sends.

    It goes along after a silence only. Those that come one upon the other are gathered by the adapter, as ever.
    """

    def __init__(
        self, place: Place, topic: Topic, keys: frozenset[str], gathering: NotifyThrottle, is_silent: Callable[[], bool]
    ) -> None:
        """``is_silent`` tells whether the adapter is open, and has nothing to send."""
        self._place = place
        self._topic = topic
        self._keys = keys
        self._gathering = gathering
        self._is_silent = is_silent
        self.arrived = False

    def depart(self, place: object) -> tuple[str, str] | None:
        """Channel and text, if it is the write's place and the notification would go out at once."""
        if place != self._place or not self._is_silent():
            return None
        if not self._gathering.depart(time.monotonic()):
            return None
        texts = encode(self._keys)
        return channel_of(self._place.schema, self._topic), texts[0] if len(texts) == 1 else WILDCARD

    def arrive(self) -> None:
        """The server has taken it."""
        self.arrived = True
        self._gathering.arrive(time.monotonic())


def channel_of(schema: str, topic: Topic) -> str:
    """The Postgres channel that carries the notifications of a topic."""
    return f"{schema}_{topic.value}"
