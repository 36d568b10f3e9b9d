"""Events of what a client wrote in a caller's transaction, told when that has committed, where its library says so.

| given as ``connection=`` | told |
|---|---|
| nothing, a pool of psycopg's, a connection in autocommit | at once: it is committed |
| Django's connection | by ``transaction.on_commit``; nothing is told of what is rolled back |
| SQLAlchemy's ``Session``, ``AsyncSession`` and their scoped kin | by the session's events; likewise |
| any other, within a transaction | at once, with ``committed=False``: nobody says what becomes of it |

SQLAlchemy and Django are never imported: their objects are known by the modules that their classes come from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

from queuert.observability.adapter import Observers
from queuert.observability.events import (
    ChainClosed,
    ChainContinued,
    ChainRetried,
    ChainsDeleted,
    ChainStarted,
    JobsTriggered,
)

ClientEvent: TypeAlias = ChainStarted | ChainClosed | ChainContinued | ChainRetried | JobsTriggered | ChainsDeleted

_SESSION_KEY = "queuert: what to tell after the commit"
_IDLE = 0
"""libpq's status of a connection without a transaction."""


def tell_committed(observers: Observers, events: Sequence[ClientEvent], connection: Any) -> None:
    """Emit events of what was written on the caller's connection, or on one of our own (None), when it is committed."""

    def tell() -> None:
        for event in events:
            observers.emit(event)

    if not events:
        return
    if connection is None or not _when_committed(connection, tell):
        for event in events:
            observers.emit(event if connection is None else replace(event, committed=False))


def _when_committed(given: Any, tell: Callable[[], None]) -> bool:
    """Whether it is, or will be, told when the transaction commits, and not at all if it is rolled back."""
    packages = {cls.__module__.partition(".")[0] for cls in type(given).__mro__}
    if "psycopg_pool" in packages:
        tell()
        return True
    if "django" in packages:
        # Outside of a transaction it is called at once. An error in it is logged by Django.
        getattr(given, "db", given).on_commit(tell, robust=True)
        return True
    if "sqlalchemy" in packages and hasattr(type(given), "get_bind"):
        return _after_session(given, tell)
    if _is_committed(given, packages):
        tell()
        return True
    return False


def _is_committed(given: Any, packages: set[str]) -> bool:
    """Whether the driver's connection has no transaction open after the write: it was in autocommit."""
    with suppress(AttributeError):
        driver = given
        if "sqlalchemy" in packages:
            driver = getattr(given, "sync_connection", given).connection.driver_connection
        elif not hasattr(driver, "pgconn") and not hasattr(driver, "in_transaction"):
            driver = driver.connection  # A cursor's.
        if hasattr(driver, "pgconn"):
            return bool(driver.pgconn.transaction_status == _IDLE)
        return not driver.in_transaction
    return False


# --- SQLAlchemy ------------------------------------------------------------------------------------------------------


def _after_session(given: Any, tell: Callable[[], None]) -> bool:
    session = given.registry() if hasattr(given, "registry") else given
    session = getattr(session, "sync_session", session)
    begun = session.get_nested_transaction() or session.get_transaction()
    if begun is None:
        return False
    if _SESSION_KEY not in session.info:
        session.info[_SESSION_KEY] = _SessionEvents(session)
    session.info[_SESSION_KEY].add(begun, tell)
    return True


class _SessionEvents:
    """What is to be told when a session's transaction has committed, each with the savepoints that it depends on."""

    def __init__(self, session: Any) -> None:
        self._waiting: list[tuple[list[Any], Callable[[], None]]] = []
        listen = sys.modules["sqlalchemy.event"].listen
        listen(session, "after_commit", self._after_commit)
        listen(session, "after_soft_rollback", self._undone)
        listen(session, "after_transaction_end", self._ended)

    def add(self, begun: Any, tell: Callable[[], None]) -> None:
        """Tell it if this transaction, or savepoint, and all around it, commit."""
        around = [begun]
        while around[-1].parent is not None:
            around.append(around[-1].parent)
        self._waiting.append((around, tell))

    def _after_commit(self, session: Any) -> None:
        if session.get_nested_transaction() is None:
            waiting, self._waiting = self._waiting, []
            for _, tell in waiting:
                tell()

    def _undone(self, _: Any, transaction: Any) -> None:
        self._waiting = [one for one in self._waiting if transaction not in one[0]]

    def _ended(self, session: Any, transaction: Any) -> None:
        if transaction.parent is None:
            # Closed without a commit, which would have been told of by now.
            self._undone(session, transaction)
