"""A connection to SQLite for one user at a time, and the statements to run on it.

A transaction begins by taking the write lock.

Connections are closed before a fork, and opened again when they are used next. SQLite records the locks of a process
next to the file, not next to the connection. A child that is forked while a connection is open inherits these records
without the locks, and then corrupts the file, even on a connection of its own. So no connection may be open during a
fork. If one cannot be closed because a transaction is in progress, the child may not use the file.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote
from weakref import WeakSet

from queuert.errors import ConfigurationError
from queuert.state.named_sections import read_sections
from queuert.state.records import CHAIN, CHAIN_STATE, CLAIMED, EVENT, JOB, OF_CHAIN_STATE, SCHEDULE, WORKER, selected
from queuert.state.sqlite.errors import BUSY, mapped_errors, not_open, primary_code, unusable
from queuert.state.sqlite.locks import OwnedLock
from queuert.state.sqlite.rows import FirstJob, Tail

_TIMEOUT = 1.0
"""Seconds to wait, in all, for transactions in progress. A transaction is waited for once: later forks, as of the other
processes of a pool, do not wait for it again. It may be that of a block in the event loop that the fork blocks."""


class Suspendable(Protocol):
    """A connection to a file."""

    path: str

    def suspend(self, timeout: float) -> bool:
        """Close it and keep it closed. Returns False if it was in use for the whole timeout."""
        ...

    def resume(self) -> None:
        """Allow its use again, if it was closed."""
        ...


_known: WeakSet[Suspendable] = WeakSet()
_suspended: list[Suspendable] = []
_held_at_fork: set[str] = set()
_refused: set[str] = set()
_FORK = object()
"""Holds the locks of the connections that are closed for a fork."""
connecting = threading.RLock()
"""Held while a connection is made, so that no fork happens meanwhile."""


def keep_from_children(link: Suspendable) -> None:
    """Register a connection to be closed before each fork, as long as it exists."""
    _known.add(link)


def check_usable(path: str) -> None:
    """Check that the file was not in use when this process was forked.

    Raises:
        StateError: it was in use.
    """
    if path in _refused:
        raise unusable(
            f"{path} had an open transaction when this process was forked, so SQLite cannot use it here",
            "fork earlier, or start a new process",
        )


def _before_fork() -> None:
    connecting.acquire()
    until = time.monotonic() + _TIMEOUT
    links, in_use = tuple(_known), set[str]()
    # All of them, until it is known which: a signal handler may raise meanwhile, and the fork goes on.
    _held_at_fork.update(link.path for link in links)
    for link in links:
        _suspended.append(link)
        if not link.suspend(max(0.0, until - time.monotonic())):
            in_use.add(link.path)
    _held_at_fork.intersection_update(in_use)


def _after_fork() -> None:
    for link in _suspended:
        link.resume()
    _suspended.clear()
    _held_at_fork.clear()
    connecting.release()


def _after_fork_in_child() -> None:
    _refused.update(_held_at_fork)
    _known.clear()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


MEMORY = ":memory:"


def checked(path: str | Path) -> str:
    """Return the absolute path of the file, or ``":memory:"``.

    Raises:
        ConfigurationError: the path is not that of a file, or the file cannot be written.
    """
    given = os.fspath(path)
    if given == MEMORY:
        return MEMORY
    if not given or "\0" in given:
        raise ConfigurationError(f"path must be the path of a file, got {given!r}")
    if given.startswith("file:"):
        raise ConfigurationError(f"path must be the path of a file, got the URI {given!r}")
    absolute = str(Path(given).absolute())
    check_writable(absolute)
    return absolute


def check_writable(path: str) -> None:
    """Check that the file, and the files that SQLite keeps beside it, can be written.

    Raises:
        ConfigurationError: they cannot.
    """
    file = Path(path)
    folder = file.parent
    if file.is_dir():
        raise ConfigurationError(f"path must be the path of a file, got the directory {path!r}")
    if not folder.is_dir():
        raise ConfigurationError(f"the directory {str(folder)!r} does not exist: create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"the directory {str(folder)!r} cannot be written, and SQLite creates files in it: change its permissions"
        )
    if file.exists() and not os.access(path, os.R_OK | os.W_OK):
        raise ConfigurationError(f"the file {path!r} cannot be written: change its permissions")


def uri_of(path: str) -> str:
    """Return the path as a URI of SQLite."""
    # The two slashes are an empty host; without them the beginning of a path could be taken for a host.
    return f"file:{MEMORY}" if path == MEMORY else f"file://{quote(path)}"


Row = tuple[Any, ...]

_LOOK = 0.05
"""Seconds for which SQLite waits for the write lock at a time, if the wait polls eagerly. The longer one wait lasts,
the longer are SQLite's pauses, up to a tenth of a second. Several short waits keep the pauses short, and so get the
lock sooner."""


_RECORDS = {
    "job_columns": selected(
        JOB,
        {
            "status": "CASE WHEN status = 'scheduled' AND scheduled_at <= :now THEN 'ready' ELSE status END",
            "last_error": "error",
            "trace_id": "trace_context",
            "attempt_trace_id": "attempt_trace_context",
            "overdue_at": "(SELECT overdue_seconds FROM queuert_type_trait AS trait"
            " WHERE trait.type = queuert_job.type)",
        },
    ),
    "chain_columns": selected(
        CHAIN,
        {
            "input": "CASE WHEN :payloads THEN input ELSE '' END",
            "output": "CASE WHEN :payloads AND status = 'completed' THEN output END",
        },
    ),
    "chain_state_columns": selected(
        CHAIN_STATE,
        {
            **OF_CHAIN_STATE,
            "job_status": "CASE WHEN tail.status = 'scheduled' AND tail.scheduled_at <= :now THEN 'ready'"
            " ELSE tail.status END",
            "last_error": "tail.error",
        },
    ),
    "schedule_columns": selected(SCHEDULE, {}),
    "event_columns": selected(EVENT, {"tx": "seq"}),
    "worker_columns": selected(WORKER, {}),
    "claimed_columns": selected(CLAIMED, {"lease_seconds": ":seconds"}),
    "first_job_columns": selected(FirstJob._fields, {}),
    "tail_columns": selected(
        Tail._fields,
        {
            **{name: f"tail.{name}" for name in ("id", "type", "status", "chain_index")},
            "chain_status": "root.chain_status",
            "chain_type": "root.type",
            "trace_context": "coalesce(tail.attempt_trace_context, tail.trace_context)",
        },
    ),
}
"""What statements select for records, in the order of their fields: see ``records.py``."""


@cache
def statements() -> dict[str, str]:
    """Return the statements by name: the section ``-- name: claim`` is ``claim``."""
    found = read_sections("queuert.state.sqlite", "sql", ".sql")
    for name, columns in _RECORDS.items():
        found = {section: text.replace(f"{{{name}}}", columns) for section, text in found.items()}
    return found


def now_us() -> int:
    """Return the store's clock: microseconds since 1970, the same for all processes of the machine."""
    return time.time_ns() // 1000


def run(connection: sqlite3.Connection, name: str, /, **values: Any) -> list[Row]:
    """Run a statement of the store and return its rows."""
    return connection.execute(statements()[name], values).fetchall()


def fetch_one(connection: sqlite3.Connection, name: str, /, **values: Any) -> Row | None:
    """Run a statement of the store and return its first row; None if there is none."""
    return next(iter(run(connection, name, **values)), None)


def fetch_value(connection: sqlite3.Connection, name: str, /, **values: Any) -> Any:
    """Run a statement of the store with one column, and return that of its first row; None if there is none."""
    for (value,) in run(connection, name, **values):
        return value
    return None


def execute(connection: sqlite3.Connection, name: str, /, **values: Any) -> int:
    """Run a statement of the store that writes, and return how many rows it wrote."""
    return connection.execute(statements()[name], values).rowcount


@contextmanager
def plain(connection: sqlite3.Connection) -> Iterator[None]:
    """Return rows as tuples and texts as strings in the block, whatever the caller has set for the connection."""
    row_factory, text_factory = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        yield
    finally:
        connection.row_factory, connection.text_factory = row_factory, text_factory


def _wait_at_most(connection: sqlite3.Connection, seconds: float) -> None:
    connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")


def restore(connection: sqlite3.Connection) -> None:
    """Remove what a handler, or its transaction, has set for the connection."""
    connection.set_authorizer(None)
    connection.row_factory = None
    connection.text_factory = str


def roll_back(connection: sqlite3.Connection) -> None:
    """Roll the transaction back; after some errors SQLite has done so by itself."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


class LockedConnection:
    """One connection and its lock. A user of the connection holds the lock; a transaction holds it until it ends."""

    def __init__(
        self, path: str, *, timeout: float, synchronous: str = "FULL", busy_timeout: float | None = None
    ) -> None:
        """Args are seconds: ``timeout`` to wait for other processes; ``busy_timeout``, by default the same, for other
        threads."""
        self.path = path
        self._timeout = timeout
        self._busy_timeout = timeout if busy_timeout is None else busy_timeout
        self._synchronous = synchronous
        self._keen = False
        self._lock = OwnedLock()
        self._closed = False
        self._suspended = False
        self._uses = 0
        self._waited_for_use = -1
        self.generation = 0
        """The number of connects, so that a user can tell that the connection is a new one."""
        with mapped_errors(), connecting:
            check_usable(path)
            self.connection = self._connect()
            if path != MEMORY:
                keep_from_children(self)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri_of(self.path), uri=True, timeout=self._timeout, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        except BaseException:
            connection.close()
            raise
        self.generation += 1
        return connection

    def poll_lock_eagerly(self) -> None:
        """Poll the write lock eagerly: short operations then get it before the transactions of handlers."""
        self._keen = True
        with self.held() as connection:
            _wait_at_most(connection, min(_LOOK, self._timeout))

    def wait_until(self, until: float) -> None:
        """Wait for other connections no longer than until this time of the monotonic clock."""
        with self.held() as connection:
            _wait_at_most(connection, max(0.0, until - time.monotonic()))

    def suspend(self, timeout: float) -> bool:
        """Close it before a fork, and keep it closed. Returns False if it was in use for the whole timeout."""
        use = self._uses
        if not self._lock.acquire(_FORK, 0.0 if use == self._waited_for_use else timeout):
            self._waited_for_use = use
            return False
        self._suspended = True
        self.connection.close()
        return True

    def resume(self) -> None:
        """Allow its use again, if it was closed; its next user connects it."""
        self._lock.release(_FORK)

    @property
    def closed(self) -> bool:
        """Whether it was closed for good; its current user must stop."""
        return self._closed

    def close(self) -> None:
        """Close the connection; a call in progress on it fails. Idempotent, from any thread."""
        self._closed = True
        # SQLite must not be closed while another thread uses it. That thread is interrupted, and closes it when it
        # returns.
        if not self._close_if_free():
            with suppress(sqlite3.ProgrammingError):
                self.connection.interrupt()

    def _close_if_free(self) -> bool:
        closer = object()
        try:
            if not self._lock.acquire(closer):
                return False
            self.connection.close()
        finally:
            self._lock.release(closer)
        return True

    @contextmanager
    def held(self) -> Iterator[sqlite3.Connection]:
        """Use the connection exclusively; errors are mapped."""
        with self.taken(), mapped_errors():
            yield self.connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction that reads: all its statements see the same snapshot."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction that holds the write lock of the database from its beginning."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    def _begin(self, begin: str) -> None:
        until = time.monotonic() + self._timeout
        while True:
            try:
                self.connection.execute(begin)
            except sqlite3.OperationalError as error:
                if not self._keen or primary_code(error) not in BUSY or time.monotonic() >= until or self._closed:
                    raise
            else:
                return

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self.held() as connection:
            try:
                self._begin(begin)
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # No call before the statement: a signal handler may raise there.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Use the connection exclusively, from any thread. Waits at most for the answer timeout of the database."""
        try:
            with self._lock.held(self._busy_timeout):
                self._uses += 1
                self._prepare()
                yield
        finally:
            if self._closed:
                self._close_if_free()

    def _prepare(self) -> None:
        """Make the connection usable.

        Raises:
            ClosedError: it was closed for good.
        """
        if self._closed:
            raise not_open()
        if self._suspended:
            with mapped_errors(), connecting:
                self.connection = self._connect()
                if self._keen:
                    _wait_at_most(self.connection, min(_LOOK, self._timeout))
            self._suspended = False
        if self.connection.in_transaction:
            # A signal handler raised where its user would have ended it.
            with mapped_errors():
                restore(self.connection)
                roll_back(self.connection)
