"""Notifications by rows in the file of the jobs. The common parts of listeners are in :mod:`queuert.notify.listener`.

A notification is a row, written in a transaction of its own, or in the caller's transaction that it is about. SQLite
wakes nobody, but ``PRAGMA data_version``, which costs very little, says whether another connection has committed.
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
from queuert.state.sqlite.connection import MEMORY, LockedConnection, check_writable, checked, run
from queuert.state.sqlite.errors import primary_code
from queuert.state.sqlite.schema import prepare, write_ahead

_LOCK_TIMEOUT = 0.05
"""Seconds to wait for the write lock. Nothing is received meanwhile."""

_OPEN_TIMEOUT = 10.0
_IDLE_SECONDS = 3600.0


class SQLiteNotify(ListeningNotify):
    """Notifications between the processes that share a file.

    While it is open it has a thread and one connection. While there are subscribers, the thread checks a hundred times
    a second whether the file has changed. Clients and workers that share this object notify each other without the
    file. In a forked child the adapter is closed and has no subscribers.

    Args:
        path: the path of the file. Missing tables are created.
        interval: seconds between two checks.

    Raises:
        ConfigurationError: the path is not valid, the database is in memory, or the interval is out of range.

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
    """The work on one connection. All methods are called in the listener's thread, except ``healthy``."""

    def __init__(self, path: str, interval: float, listener: Listener) -> None:
        self._interval = interval
        self._listener = listener
        self._sender = secrets.token_hex(8)
        self._listening: frozenset[Topic] = frozenset()
        self._unsent = Outbox()
        self._connection = _connect(path)
        try:
            with self._connection.held() as connection:
                # The version first: what is committed between the two queries is then read twice, and not missed.
                self._version = self._connection.generation, _version(connection)
                [(self._last_id,)] = run(connection, "last_notification")
        except BaseException:
            self._connection.close()
            raise
        self.began_at = time.monotonic()

    @property
    def healthy(self) -> bool:
        """Always True: notifications arrive as long as the file can be read."""
        return True

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()

    def run_once(self) -> None:
        """Send and dispatch what is due, then wait for the next check or for the waker."""
        self._keep_listening()
        if self._listener.reported_error is not None:
            self._listener.on_healthy()
        self._dispatch_local()
        self._write_unsent()
        self._dispatch_received()
        busy = self._listening or self._unsent.keys
        self._listener.waker.wait(self._interval if busy else _IDLE_SECONDS)

    def _keep_listening(self) -> None:
        wanted = self._listener.subscribers.topics
        new, self._listening = wanted - self._listening, wanted
        for topic in new:
            # Notifications between the subscription and this moment were not received.
            self._listener.subscribers.dispatch(Notification(topic, None))

    def send(self, timeout: float) -> None:
        """Send the outbox, within ``timeout`` seconds."""
        self._dispatch_local()
        with self._connection.held() as connection:
            connection.execute(f"PRAGMA busy_timeout = {round(timeout * 1000)}")
        self._write_unsent()
        self._listener.outbox.restore(self._unsent.take())

    def _dispatch_local(self) -> None:
        """Dispatch the outbox to the subscribers of this process, at once."""
        batch = self._listener.outbox.take()
        self._unsent.restore(batch)
        for topic, keys in batch.items():
            self._listener.subscribers.dispatch(Notification(topic, None if keys is None else frozenset(keys)))

    def _write_unsent(self) -> None:
        """Write what other processes are to receive to the file. If the file is locked, it is written next time."""
        batch = self._unsent.take()
        if not batch:
            return
        try:
            written = self._write(batch)
        except BaseException:
            self._listener.outbox.restore(batch)
            raise
        if not written:
            self._unsent.restore(batch)

    def _write(self, batch: Batch) -> bool:
        with self._connection.held() as connection:
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

    def _dispatch_received(self) -> None:
        with self._connection.held() as connection:
            version = self._connection.generation, _version(connection)
            if version == self._version:
                return
            self._version = version
            rows = run(connection, "read_notifications", after=self._last_id)
        keys_by_topic: dict[Topic, frozenset[str] | None] = {}
        if rows and rows[0][0] > self._last_id + 1:
            # The rows in between were deleted before they were read.
            keys_by_topic = dict.fromkeys(Topic)
        for id, sender, topic_name, stored_keys in rows:
            self._last_id = id
            if sender != self._sender:
                topic, keys = Topic(topic_name), notifications.keys_of(stored_keys)
                before = keys_by_topic.get(topic, frozenset())
                keys_by_topic[topic] = None if keys is None or before is None else before | keys
        for topic, keys in keys_by_topic.items():
            self._listener.subscribers.dispatch(Notification(topic, keys))


def _connect(path: str) -> LockedConnection:
    check_writable(path)
    first = LockedConnection(path, timeout=_OPEN_TIMEOUT, synchronous="NORMAL")
    try:
        write_ahead(first, timeout=_OPEN_TIMEOUT)
        prepare(first)
        return LockedConnection(path, timeout=_LOCK_TIMEOUT, synchronous="NORMAL", busy_timeout=_OPEN_TIMEOUT)
    finally:
        first.close()


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA data_version").fetchone()[0])
