"""Emits events of writes in a caller's transaction when it has committed, if its library reports commits.

| ``connection=`` | the event is emitted |
|---|---|
| nothing, a driver's pool, a connection in autocommit | at once, as the write is committed |
| Django's connection | by ``transaction.on_commit``; not at all after a rollback |
| SQLAlchemy's ``Session``, ``AsyncSession``, scoped sessions | by the session's events; not at all after a rollback |
| any other, within a transaction | at once, with ``committed=False``, as nothing reports the commit |

SQLAlchemy, Django and drivers are never imported: their objects are recognised by the modules of their classes.
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
    EventSent,
    JobsTriggered,
)

ClientEvent: TypeAlias = (
    ChainStarted | ChainClosed | ChainContinued | ChainRetried | EventSent | JobsTriggered | ChainsDeleted
)

_SESSION_KEY = "queuert: events to emit after the commit"
_IDLE = 0
"""libpq's status of a connection without a transaction."""


def emit_committed(observers: Observers, events: Sequence[ClientEvent], connection: Any) -> None:
    """Emit events of writes on the caller's connection, or the client's own (None), when they are committed."""

    def emit() -> None:
        for event in events:
            observers.emit(event)

    if not events:
        return
    if connection is None or not _when_committed(connection, emit):
        for event in events:
            observers.emit(event if connection is None else replace(event, committed=False))


def _when_committed(connection: Any, emit: Callable[[], None]) -> bool:
    """Call ``emit`` when the transaction commits, and return True; return False if the library reports no commits."""
    kind = type(connection)
    packages = {cls.__module__.partition(".")[0] for cls in kind.__mro__}
    if "psycopg_pool" in packages or hasattr(kind, "acquire") or hasattr(kind, "getconn"):  # A pool.
        emit()
        return True
    if "django" in packages:
        # Outside of a transaction Django calls it at once. Django logs its errors.
        getattr(connection, "db", connection).on_commit(emit, robust=True)
        return True
    if "sqlalchemy" in packages and hasattr(type(connection), "get_bind"):
        return _when_session_committed(connection, emit)
    if _is_committed(connection, packages):
        emit()
        return True
    return False


def _is_committed(connection: Any, packages: set[str]) -> bool:
    """Whether the driver's connection has no open transaction after the write, as it is in autocommit."""
    with suppress(AttributeError):
        driver = connection
        if "sqlalchemy" in packages:
            driver = getattr(connection, "sync_connection", connection).connection.driver_connection
        elif hasattr(driver, "connection"):
            driver = driver.connection  # A cursor's.
        if hasattr(driver, "pgconn"):
            return bool(driver.pgconn.transaction_status == _IDLE)
        if hasattr(driver, "get_transaction_status"):  # psycopg2's
            return bool(driver.get_transaction_status() == _IDLE)
        if hasattr(driver, "is_in_transaction"):  # asyncpg's
            return not driver.is_in_transaction()
        return not driver.in_transaction
    return False


# --- SQLAlchemy -------------------------------------------------------------------------------------------------------


def _when_session_committed(connection: Any, emit: Callable[[], None]) -> bool:
    session = connection.registry() if hasattr(connection, "registry") else connection
    session = getattr(session, "sync_session", session)
    transaction = session.get_nested_transaction() or session.get_transaction()
    if transaction is None:
        return False
    if _SESSION_KEY not in session.info:
        session.info[_SESSION_KEY] = _SessionEvents(session)
    session.info[_SESSION_KEY].add(transaction, emit)
    return True


class _SessionEvents:
    """The pending events of a session, each with the transaction and the savepoints that must commit for it."""

    def __init__(self, session: Any) -> None:
        self._pending: list[tuple[list[Any], Callable[[], None]]] = []
        listen = sys.modules["sqlalchemy.event"].listen
        listen(session, "after_commit", self._after_commit)
        listen(session, "after_soft_rollback", self._after_rollback)
        listen(session, "after_transaction_end", self._after_end)

    def add(self, transaction: Any, emit: Callable[[], None]) -> None:
        """Call ``emit`` if this transaction or savepoint, and all enclosing ones, commit."""
        required = [transaction]
        while required[-1].parent is not None:
            required.append(required[-1].parent)
        self._pending.append((required, emit))

    def _after_commit(self, session: Any) -> None:
        if session.get_nested_transaction() is None:
            pending, self._pending = self._pending, []
            for _, emit in pending:
                emit()

    def _after_rollback(self, _: Any, transaction: Any) -> None:
        self._pending = [(required, emit) for required, emit in self._pending if transaction not in required]

    def _after_end(self, session: Any, transaction: Any) -> None:
        if transaction.parent is None:
            # It ended without a commit, since _after_commit would have emptied the list.
            self._after_rollback(session, transaction)
