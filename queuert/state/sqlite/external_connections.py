"""Unwraps the sqlite3 connection from the object that a caller passes as ``connection=``.

SQLAlchemy and Django are never imported: their objects are recognised by the modules of their classes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from queuert.errors import StateUnavailableError, UnsupportedConnectionError
from queuert.state.sqlite.connection import plain, run
from queuert.state.sqlite.errors import BUSY, mapped_errors, primary_code

_TAKES = (
    "a sqlite3.Connection, its cursor, an SQLAlchemy Connection or Session, or Django's connection, on the same file"
)


def callers_connection(given: Any, path: str) -> sqlite3.Connection:
    """Return the sqlite3 connection of the object that a caller passed.

    Raises:
        UnsupportedConnectionError: it has none, or one to another file or of another thread, or a closed one.
    """
    found = _driver_connection(given)
    if not isinstance(found, sqlite3.Connection):
        kind = f"{type(given).__module__}.{type(given).__name__}"
        raise UnsupportedConnectionError(f"connection must be {_TAKES}, got {kind}")
    try:
        with plain(found):
            _, _, file = found.execute("PRAGMA database_list").fetchone()
    except sqlite3.ProgrammingError as error:
        raise UnsupportedConnectionError(
            f"the connection cannot be used here: {error}. Open it with check_same_thread=False for an AsyncClient"
        ) from error
    if not _is_same(file, path):
        raise UnsupportedConnectionError(
            f"connection must be one to {path}, where the jobs are, got one to {file or 'a database in memory'}"
        )
    return found


@contextmanager
def savepoint(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Wraps writes in the caller's transaction, begun if its library would begin one; an error undoes the block.

    It takes the write lock of the database first. A transaction that reads before it writes would not wait for others
    that write, since what it has read would no longer hold then.
    """
    with mapped_errors(), plain(connection):
        begins = not connection.in_transaction
        ends = begins and not _begins_transactions(connection)
        saved = False
        try:
            if begins:
                connection.execute("BEGIN IMMEDIATE")
            else:
                _take_write_lock(connection)
            connection.execute("SAVEPOINT queuert")
            saved = True
            yield connection
            connection.execute("COMMIT" if ends else "RELEASE queuert")
        except BaseException:
            # No call before the statement: a signal handler may raise there.
            if connection.in_transaction and (ends or (begins and not saved)):
                connection.execute("ROLLBACK")
            elif connection.in_transaction and saved:
                connection.execute("ROLLBACK TO queuert")
                connection.execute("RELEASE queuert")
            raise


def _take_write_lock(connection: sqlite3.Connection) -> None:
    """Take the write lock in the caller's transaction, which may have begun with BEGIN alone, and so has no lock yet.

    Raises:
        StateUnavailableError: others wrote for longer than the connection waits, or the transaction has read before, so
            that SQLite does not wait.
    """
    try:
        run(connection, "lock_for_writes")
    except sqlite3.OperationalError as error:
        if primary_code(error) not in BUSY:
            raise
        raise StateUnavailableError(
            f"{error}: another transaction writes, or has written since yours has read. SQLite does not wait in a "
            "transaction that has read before it writes: begin it with BEGIN IMMEDIATE, or start chains before it "
            "reads. Roll it back, and repeat it"
        ) from error


def _begins_transactions(connection: sqlite3.Connection) -> bool:
    """Whether the driver begins a transaction before the first statement that writes; otherwise each is its own."""
    return connection.isolation_level is not None and getattr(connection, "autocommit", False) is not True


def _is_same(file: str, path: str) -> bool:
    try:
        return Path(file).samefile(path)
    except OSError:
        return False


def _driver_connection(given: Any) -> Any:
    if isinstance(given, sqlite3.Cursor):
        return given.connection
    modules = {cls.__module__.partition(".")[0] for cls in type(given).__mro__}
    if "sqlalchemy" in modules:
        return _of_sqlalchemy(given)
    if "django" in modules:
        return _of_django(given)
    return given


def _of_sqlalchemy(given: Any) -> Any:
    if hasattr(type(given), "get_bind"):  # A session; it begins a transaction if there is none.
        given = given.connection()
    elif not hasattr(type(given), "exec_driver_sql"):
        return None
    elif not given.in_transaction():
        # The session's first statement would begin it. Without it, its commit() would commit nothing.
        given.begin()
    return given.connection.driver_connection


def _of_django(given: Any) -> Any:
    wrapper = getattr(given, "db", given)  # A cursor's.
    if getattr(wrapper, "vendor", None) != "sqlite":
        return None
    wrapper.ensure_connection()
    # After an error in an atomic block Django refuses statements. Ours would be accepted and rolled back silently.
    wrapper.validate_no_broken_transaction()
    return wrapper.connection
