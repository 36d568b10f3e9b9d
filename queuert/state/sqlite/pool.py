"""The connections of a store: one that writes, one that reads, one for each open transaction. Memory has only one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from queuert.notify.fork_safety import reset_in_children
from queuert.state.sqlite.connection import LockedConnection, check_writable
from queuert.state.sqlite.errors import not_open
from queuert.state.sqlite.locks import OwnedLock
from queuert.state.sqlite.schema import prepare, write_ahead

# Copies of the parent's connections in a forked child. They are kept, because closing one would release the parent's
# locks on the file.
_inherited: list[LockedConnection] = []


class ConnectionPool:
    """Connections to a file. A forked child begins with a store that is not open."""

    def __init__(self, path: str, *, timeout: float, synchronous: str) -> None:
        self.path = path
        self._timeout = timeout
        self._synchronous = synchronous
        self._main: LockedConnection | None = None
        self._reader: LockedConnection | None = None
        self._others: set[LockedConnection] = set()
        self._turn = OwnedLock()
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        """Start anew without the connections of the parent process, in a forked child. Internal."""
        _inherited.extend(link for link in (self._main, self._reader, *self._others) if link is not None)
        self._main = self._reader = None
        self._others = set()
        self._turn = OwnedLock()

    @property
    def main(self) -> LockedConnection:
        """The connection that writes."""
        if self._main is None:
            raise not_open()
        return self._main

    @property
    def reader(self) -> LockedConnection:
        """The connection that reads. It does not wait for the connection that writes."""
        if self._reader is None:
            raise not_open()
        return self._reader

    def _link(self) -> LockedConnection:
        return LockedConnection(self.path, timeout=self._timeout, synchronous=self._synchronous)

    def open(self) -> None:
        """Connect, and create the tables if they do not exist. Idempotent."""
        if self._main is not None:
            return
        check_writable(self.path)
        link = self._link()
        try:
            write_ahead(link, timeout=self._timeout)
            prepare(link)
            link.poll_lock_eagerly()
            self._reader = self._link()
        except BaseException:
            link.close()
            raise
        self._main = link

    def close(self) -> None:
        """Close all connections; calls in progress on them fail. Idempotent."""
        links = [self._main, self._reader, *self._others]
        self._main = self._reader = None
        for link in links:
            if link is not None:
                link.close()

    @contextmanager
    def for_transaction(self) -> Iterator[LockedConnection]:
        """Use a connection for one transaction.

        The transactions of one store wait for each other here, so that only one at a time waits for the file. If all
        waited there, they would delay the short operations.
        """
        until, link = time.monotonic() + self._timeout, None
        with self._turn.held(self._timeout):
            try:
                if self._main is None:
                    raise not_open()
                link = self._link()
                link.wait_until(until)
                self._others.add(link)
                yield link
            finally:
                if link is not None:
                    self._others.discard(link)
                    link.close()

    def after_commit(self) -> None:
        """Do what follows a transaction that was committed and has given its connection back."""


class InMemoryPool(ConnectionPool):
    """The one connection to a database in memory, shared by all stores of its adapter."""

    def __init__(self, link: LockedConnection, path: str, on_commit: Callable[[], None]) -> None:
        super().__init__(path, timeout=0.0, synchronous="OFF")
        self._shared = link
        self._on_commit = on_commit

    def open(self) -> None:
        """Use the shared connection. Idempotent."""
        self._main = self._reader = self._shared

    def close(self) -> None:
        """Stop using the connection; the adapter keeps it, and the data with it."""
        self._main = self._reader = None

    @contextmanager
    def for_transaction(self) -> Iterator[LockedConnection]:
        """Use the shared connection: all other callers wait until the transaction ends."""
        yield self.main

    def after_commit(self) -> None:
        """Send the notifications of the transaction."""
        self._on_commit()
