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
    JobsTriggered,
)

ClientEvent: TypeAlias = ChainStarted | ChainClosed | ChainContinued | ChainRetried | JobsTriggered | ChainsDeleted

_SESSION_KEY = "queuert: what to tell after the commit"
_IDLE = 0
"""libpq's status of a connection without a transaction."""


def tell_committed(observers: Observers, events: Sequence[ClientEvent], connection: Any) -> None:
    """Emit events of writes on the caller's connection, or the client's own (None), when they are committed."""

    def tell() -> None:
        for event in events:
            observers.emit(event)

    if not events:
        return
    if connection is None or not _when_committed(connection, tell):
        for event in events:
            observers.emit(event if connection is None else replace(event, committed=False))


def _when_committed(given: Any, tell: Callable[[], None]) -> bool:
    """Call ``tell`` when the transaction commits, and return True; return False if the library reports no commits."""
    packages = {cls.__module__.partition(".")[0] for cls in type(given).__mro__}
    if "psycopg_pool" in packages or hasattr(type(given), "acquire") or hasattr(type(given), "getconn"):
        tell()
        return True
    if "django" in packages:
        # Outside of a transaction Django calls it at once. Django logs its errors.
        getattr(given, "db", given).on_commit(tell, robust=True)
        return True
    if "sqlalchemy" in packages and hasattr(type(given), "get_bind"):
        return _after_session(given, tell)
    if _is_committed(given, packages):
        tell()
        return True
    return False


def _is_committed(given: Any, packages: set[str]) -> bool:
    """Whether the driver's connection has no open transaction after the write, as it is in autocommit."""
    with suppress(AttributeError):
        driver = given
        if "sqlalchemy" in packages:
            driver = getattr(given, "sync_connection", given).connection.driver_connection
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
    """The pending events of a session's transaction, each with the savepoints that it depends on."""

    def __init__(self, session: Any) -> None:
        self._waiting: list[tuple[list[Any], Callable[[], None]]] = []
        listen = sys.modules["sqlalchemy.event"].listen
        listen(session, "after_commit", self._after_commit)
        listen(session, "after_soft_rollback", self._undone)
        listen(session, "after_transaction_end", self._ended)

    def add(self, begun: Any, tell: Callable[[], None]) -> None:
        """Call ``tell`` if this transaction or savepoint, and all enclosing ones, commit."""
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
            # It was closed without a commit, or _after_commit would have emptied the list.
            self._undone(session, transaction)
