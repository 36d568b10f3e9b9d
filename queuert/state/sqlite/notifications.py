"""Notifications in the file itself, which other processes read after the transaction has committed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping

from queuert.notify.adapter import Topic
from queuert.state.sqlite.connection import run

KEPT = 2_000
"""The number of notifications that are kept. A reader that has missed one acts as if all keys were notified."""

_TRIMMED = 1_000
"""The most that are deleted at a time: a transaction of the caller's is not to be long because of them."""


def write(
    connection: sqlite3.Connection, notifications: Mapping[Topic, Iterable[str] | None], *, sender: str = ""
) -> None:
    """Write notifications in the connection's transaction. Keys of None stand for all keys of the topic.

    In a file, trim it in the same transaction.
    """
    for topic, given in notifications.items():
        keys = None if given is None else list(given)
        if keys is None or keys:
            text = None if keys is None else json.dumps(keys)
            run(connection, "insert_notification", sender=sender, topic=topic.value, keys=text)


def trim(connection: sqlite3.Connection) -> None:
    """Delete all but the latest notifications. Whoever writes some calls it: with an adapter of other notifications
    nobody reads them."""
    run(connection, "trim_notifications", kept=KEPT, most=_TRIMMED)


def keys_of(stored: str | None) -> frozenset[str] | None:
    """Return the keys of a notification, as they are stored; None for all."""
    return None if stored is None else frozenset(json.loads(stored))
