"""Connections and transactions for all operations."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from queuert.notify.results import Notifications
from queuert.state.sqlite import notifications
from queuert.state.sqlite.connection import MEMORY, plain
from queuert.state.sqlite.errors import mapped_errors
from queuert.state.sqlite.external_connections import callers_connection, savepoint
from queuert.state.sqlite.limits import KeyCursors
from queuert.state.sqlite.pool import ConnectionPool
from queuert.state.types import PoolUse, StoreWarning

Connection = sqlite3.Connection

T = TypeVar("T")


class SQLiteBase:
    """The connections of a store, and the ways to run operations on them.

    Every operation that writes is one transaction that holds the write lock of the database, so operations never
    conflict.
    """

    def __init__(self, links: ConnectionPool) -> None:
        self._links = links
        self._rounds = KeyCursors()

    @property
    def pool_use(self) -> PoolUse | None:
        """None: there is no pool."""
        return None

    @property
    def risks(self) -> tuple[StoreWarning, ...]:
        """Empty: a file is as durable as its disk, and a database in memory is not expected to be."""
        return ()

    def open(self) -> None:
        """Connect, and create the tables if they do not exist."""
        self._links.open()

    def close(self) -> None:
        """Close all connections."""
        self._links.close()

    def _reading(self, callers: Any = None) -> AbstractContextManager[Connection]:
        """Return a context manager of a connection for reads: the caller's, which sees what it has written, or ours."""
        return self._links.reader.reading() if callers is None else self._reading_in(callers)

    @contextmanager
    def _reading_in(self, callers: Any) -> Iterator[Connection]:
        connection = self._callers(callers)
        with mapped_errors(), plain(connection):
            yield connection

    @contextmanager
    def _writing(self, callers: Any = None) -> Iterator[Connection]:
        """Open a transaction, or a savepoint in the caller's transaction."""
        if callers is None:
            with self._links.main.writing() as connection:
                yield connection
            return
        with savepoint(self._callers(callers)) as connection:
            yield connection

    def _callers(self, given: Any) -> Connection:
        main = self._links.main
        if self._links.path == MEMORY and isinstance(given, Connection) and given is main.connection:
            return given
        return callers_connection(given, self._links.path)

    def _outside(self, callers: Any, work: Callable[[Connection], T], reported: Callable[[T], Notifications]) -> T:
        """Run ``work`` in a transaction, or in the caller's, which then sends the notifications when it commits."""
        with self._writing(callers) as connection:
            result = work(connection)
            if callers is not None:
                notifications.write(connection, reported(result))
                if self._links.path != MEMORY:  # There, whoever commits publishes and deletes them all.
                    notifications.trim(connection)
            return result
