"""Notifications that wait to be sent: each key once, and never more than a bounded number of them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TypeAlias

from queuert.notify.adapter import Topic

Batch: TypeAlias = Mapping[Topic, frozenset[str] | None]
"""What goes out together; None stands for all keys of the topic."""

MAX_KEYS = 2_000
"""Of one topic; beyond, everybody is told to look at everything."""

MAX_KEY_LENGTH = 4_000
"""In characters; a longer key is not worth its memory, nor would it fit into a notification."""


class Outbox:
    """A bounded set of notifications, filled by any thread and emptied by one."""

    def __init__(self) -> None:
        self._keys: dict[Topic, set[str] | None] = {}
        # Re-entrant: the garbage collector may close a client, and so its adapter, in the middle of an addition.
        self._lock = threading.RLock()

    def add(self, topic: Topic, keys: Iterable[str] | None) -> bool:
        """Add keys, or all with None; whether there was nothing before and there is something now."""
        given = None if keys is None else set(islice(keys, MAX_KEYS + 1))
        with self._lock:
            was_empty = not self._keys
            if given is None or given:
                self._keys[topic] = _bounded(self._keys.get(topic, set()), given)
            return was_empty and bool(self._keys)

    def take(self) -> Batch:
        """Take out all there is."""
        with self._lock:
            taken, self._keys = self._keys, {}
        return {topic: None if keys is None else frozenset(keys) for topic, keys in taken.items()}

    def put_back(self, batch: Batch) -> None:
        """Return what was taken and could not be sent."""
        for topic, keys in batch.items():
            self.add(topic, keys)

    def __bool__(self) -> bool:
        return bool(self._keys)


def _bounded(old: set[str] | None, new: set[str] | None) -> set[str] | None:
    if old is None or new is None or any(len(key) > MAX_KEY_LENGTH for key in new):
        return None
    old |= new
    return old if len(old) <= MAX_KEYS else None
