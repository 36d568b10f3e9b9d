"""Notifications by way of the file that holds the jobs; what it shares with others is in
:mod:`queuert.notify.listener`.

A notification is a row, written in a transaction of its own, or in that of the caller whose writes it is about. SQLite
tells
nobody; but ``PRAGMA data_version`` says, for next to nothing, whether somebody else has committed since the last look.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from pathlib import Path

from queuert.errors import ConfigurationError
from queuert.notify.adapter import Notification, Topic
from queuert.notify.listener import Batch, Listener, ListeningNotify, Outbox, Subscribers
from queuert.policies import Backoff
from queuert.state.sqlite import notifications
from queuert.state.sqlite.connection import LockedConnection, run
from queuert.state.sqlite.errors import primary_code
from queuert.state.sqlite.paths import MEMORY, check_writable, checked
from queuert.state.sqlite.schema import prepare, write_ahead

_TIMEOUT = 0.05
"""Seconds to wait for the write lock, in which nothing is heard."""

_OPENING = 10.0
_ASLEEP = 3600.0


class SQLiteNotify(ListeningNotify):
    """Notifications between the processes that share a file.

    While it is open it keeps a thread and one connection. When anybody listens, the thread looks a hundred times a
    second whether the file has changed; clients and workers that were given this very object hear each other without
    the file. A forked child begins with an adapter that is closed and has no subscribers.

    Args:
        path: of the file. The tables are made if they are not there.
        interval: seconds between two looks.

    Raises:
        ConfigurationError: there can be no such file, it is in memory, or the interval is out of range.

    Example:
        >>> notify = SQLiteNotify("/var/lib/shop/jobs.db")  # doctest: +SKIP
        >>> client = Client(SQLiteState("/var/lib/shop/jobs.db"), job_types, notify=notify)  # doctest: +SKIP
    """

    def __init__(self, path: str | Path, *, interval: float = 0.01) -> None:
        self._path = checked(path)
        if self._path == MEMORY:
            raise ConfigurationError("a database in memory belongs to one process: use InProcessNotify")
        if not 0 < interval <= 60:
            raise ConfigurationError(f"interval must be above 0 and at most 60 seconds, got {interval!r}")
        self._interval = interval
        super().__init__()

    def __repr__(self) -> str:
        return f"SQLiteNotify({self._path!r})"

    def _new_listener(self, subscribers: Subscribers) -> Listener:
        return Listener("SQLiteNotify", Backoff(0.1, 5.0), subscribers, self._new_session)

    def _new_session(self, listener: Listener) -> _Session:
        return _Session(self._path, self._interval, listener)


class _Session:
    """The connection's state. All methods belong to the listener's thread, except ``healthy``."""

    def __init__(self, path: str, interval: float, owner: Listener) -> None:
        self._interval = interval
        self._owner = owner
        self._sender = secrets.token_hex(8)
        self._listening: frozenset[Topic] = frozenset()
        self._unsent = Outbox()
        self._link = _connect(path)
        try:
            with self._link.held() as connection:
                # A look at the version first: what is committed between the two looks is then read twice, not never.
                self._version = self._link.generation, _version(connection)
                [(self._seen,)] = run(connection, "last_notification")
        except BaseException:
            self._link.close()
            raise
        self.began_at = time.monotonic()

    @property
    def healthy(self) -> bool:
        """A file is heard as long as it can be read."""
        return True

    def close(self) -> None:
        """Disconnect."""
        self._link.close()

    def turn(self) -> None:
        """Do all there is to do, then wait for more."""
        self._keep_listening()
        if self._owner.reported is not None:
            self._owner.works()
        self._tell_near()
        self._tell_far()
        self._hear()
        busy = self._listening or self._unsent.keys
        self._owner.waker.wait(self._interval if busy else _ASLEEP)

    def _keep_listening(self) -> None:
        wanted = self._owner.subscribers.topics
        new, self._listening = wanted - self._listening, wanted
        for topic in new:
            # What happened between their subscription and this moment was not heard.
            self._owner.subscribers.dispatch(Notification(topic, None))

    def send(self, limit: float) -> None:
        """Tell the last notifications, within ``limit`` seconds."""
        self._tell_near()
        with self._link.held() as connection:
            connection.execute(f"PRAGMA busy_timeout = {round(limit * 1000)}")
        self._tell_far()
        self._owner.pending.put_back(self._unsent.take())

    def _tell_near(self) -> None:
        """Tell those of this process at once."""
        batch = self._owner.pending.take()
        self._unsent.put_back(batch)
        for topic, keys in batch.items():
            self._owner.subscribers.dispatch(Notification(topic, None if keys is None else frozenset(keys)))

    def _tell_far(self) -> None:
        """Tell the others by the file. What cannot be written now, since somebody holds it, is for the next time."""
        batch = self._unsent.take()
        if not batch:
            return
        try:
            written = self._written(batch)
        except BaseException:
            self._owner.pending.put_back(batch)
            raise
        if not written:
            self._unsent.put_back(batch)

    def _written(self, batch: Batch) -> bool:
        with self._link.held() as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if primary_code(error) != sqlite3.SQLITE_BUSY:
                    raise
                return False
            notifications.write(connection, batch, sender=self._sender)
            notifications.trim(connection)
            connection.execute("COMMIT")
            return True

    def _hear(self) -> None:
        with self._link.held() as connection:
            version = self._link.generation, _version(connection)
            if version == self._version:
                return
            self._version = version
            found = run(connection, "read_notifications", after=self._seen)
        heard: dict[Topic, frozenset[str] | None] = {}
        if found and found[0][0] > self._seen + 1:
            # Those in between were deleted before they could be read.
            heard = dict.fromkeys(Topic)
        for row in found:
            self._seen = row[0]
            if row[1] != self._sender:
                topic, keys = Topic(row[2]), notifications.keys_of(row)
                before = heard.get(topic, frozenset())
                heard[topic] = None if keys is None or before is None else before | keys
        for topic, keys in heard.items():
            self._owner.subscribers.dispatch(Notification(topic, keys))


def _connect(path: str) -> LockedConnection:
    check_writable(path)
    first = LockedConnection(path, timeout=_OPENING, synchronous="NORMAL")
    try:
        write_ahead(first, timeout=_OPENING)
        prepare(first)
        return LockedConnection(path, timeout=_TIMEOUT, synchronous="NORMAL", busy_timeout=_OPENING)
    finally:
        first.close()


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA data_version").fetchone()[0])
