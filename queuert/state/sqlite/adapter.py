"""The state adapter of SQLite."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import finalize

from queuert.errors import ConfigurationError, StateError
from queuert.notify.adapter import Topic
from queuert.notify.fork_safety import reset_in_children
from queuert.notify.in_process import InProcessNotify
from queuert.state.adapter import Capability
from queuert.state.async_store import AsyncStore
from queuert.state.diagnosis import DEFAULT_THRESHOLDS, Finding, Thresholds
from queuert.state.sqlite import notifications
from queuert.state.sqlite.connection import MEMORY, LockedConnection, checked, run
from queuert.state.sqlite.pool import ConnectionPool, InMemoryPool
from queuert.state.sqlite.schema import prepare
from queuert.state.sqlite.store import SQLiteStore
from queuert.state.threaded import as_async

if TYPE_CHECKING:
    from queuert.notify.adapter import NotifyAdapter

_THREADS = 64
"""Threads of an async store, for each of their uses: so many operations wait for the database at a time."""


class SQLiteState:
    """Stores jobs in a file, or in memory, without a server: for one machine, and for tests.

    Any number of threads and processes of one machine share a file; one of them writes at a time. The tables are
    created when a store is opened. Their names begin with ``queuert_``, so tables of the application may be in the same
    file, and be written in the same transactions. A file on a network file system is not safe.

    Args:
        path: the path of the file, which is created if it does not exist; ``":memory:"`` keeps the jobs in this
            process, as long as this object exists.
        answer_timeout: seconds to wait while others write; above 0 and at most 86,400.
        synchronous: ``"full"`` flushes each commit to disk, so that it survives a loss of power. ``"normal"`` is faster
            and may lose the last commits before a loss of power. A crash of the process loses no commit either way.

    Raises:
        ConfigurationError: the path is not that of a writable file, or a setting is not valid.

    Example::

        state = SQLiteState("jobs.db")
        print(state)
    """

    def __init__(self, path: str | Path = MEMORY, *, answer_timeout: float = 30.0, synchronous: str = "full") -> None:
        self._given = str(path)
        self._path = checked(path)
        if not 0 < answer_timeout <= 86_400:
            raise ConfigurationError(
                f"answer_timeout must be above 0 and at most 86,400 seconds, got {answer_timeout!r}"
            )
        if synchronous not in ("full", "normal"):
            raise ConfigurationError(f"synchronous must be 'full' or 'normal', got {synchronous!r}")
        self._timeout = answer_timeout
        self._synchronous = synchronous
        self._lock = threading.RLock()
        self._shared: LockedConnection | None = None
        self._forked = False
        self._notify: NotifyAdapter | None = None
        reset_in_children(self)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Keys with an order, and an event log; for a file also transactions of callers, and several processes."""
        always = frozenset({Capability.ORDERED_KEYS, Capability.EVENTS})
        if self._path == MEMORY:
            return always
        return always | {Capability.USER_TRANSACTIONS, Capability.MULTI_PROCESS}

    @property
    def path(self) -> str:
        """The absolute path of the file, or ``":memory:"``."""
        return self._path

    def __repr__(self) -> str:
        return f"SQLiteState({self._given!r})"

    def __reduce__(self) -> tuple[object, ...]:
        if self._path == MEMORY:
            raise ConfigurationError("jobs in memory cannot be shared between processes: use the path of a file")
        return _again, (self._path, self._timeout, self._synchronous)

    def reset_after_fork(self) -> None:
        """Forget the parent's resources in a forked child. Internal."""
        self._forked = self._shared is not None
        self._lock = threading.RLock()

    def sync_store(self, *, max_connections: int = 4, answer_timeout: float | None = None) -> SQLiteStore:
        """Return a new, unopened sync store.

        It has one connection that writes, one that reads, and one for each open transaction; ``max_connections`` is
        ignored.
        """
        return SQLiteStore(self._links(min(self._timeout, answer_timeout or self._timeout)))

    def async_store(self, *, max_connections: int = 4) -> AsyncStore:
        """Return a new, unopened async store, which runs each operation in a thread."""
        return as_async(self.sync_store(), threads=_THREADS)

    def _links(self, timeout: float) -> ConnectionPool:
        if self._path != MEMORY:
            return ConnectionPool(self._path, timeout=timeout, synchronous=self._synchronous.upper())
        return InMemoryPool(self._memory(), MEMORY, self._tell)

    def _memory(self) -> LockedConnection:
        with self._lock:
            if self._forked:
                raise StateError("jobs in memory belong to the process that created them: use the path of a file")
            if self._shared is None:
                link = self._shared = LockedConnection(MEMORY, timeout=self._timeout)
                finalize(self, link.close).atexit = False
                prepare(link)
            return self._shared

    def _tell(self) -> None:
        """Send the notifications of a transaction that was committed in memory."""
        link = self._shared
        if link is None:
            return
        with link.writing() as connection:
            found = run(connection, "read_notifications", after=0)
            run(connection, "delete_notifications")
        for _, _, topic, keys in found:
            self.default_notify().publish(Topic(topic), notifications.keys_of(keys) or ())

    def close(self) -> None:
        """Delete a database in memory. A file needs no closing."""
        with self._lock:
            link, self._shared = self._shared, None
        if link is not None:
            link.close()

    def diagnose(self, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> list[Finding]:
        """Check the file, its disk and what is in it, as ``queuert doctor`` does. It changes nothing.

        Raises:
            StateUnavailableError: others write for longer than ``answer_timeout``.
        """
        from queuert.state.sqlite.doctor import diagnose

        return diagnose(self, self._path, self._synchronous, thresholds)

    def default_notify(self) -> NotifyAdapter:
        """Return a notify adapter that uses the file; for a database in memory, one within this process."""
        with self._lock:
            if self._notify is None:
                if self._path == MEMORY:
                    self._notify = InProcessNotify()
                else:
                    from queuert.notify.sqlite import SQLiteNotify

                    self._notify = SQLiteNotify(self._path)
            return self._notify


def _again(path: str, answer_timeout: float, synchronous: str) -> SQLiteState:
    return SQLiteState(path, answer_timeout=answer_timeout, synchronous=synchronous)
