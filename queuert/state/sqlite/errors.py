"""Errors of SQLite's driver, as those of Queuert's tree."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from queuert.errors import ClosedError, StateError, StateUnavailableError

BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
"""Others have the database."""
_NO_DATABASE = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
_ADVICE = (
    "another transaction has held the database for too long. Keep transactions short; what a handler starts inside its "
    "transaction is to be given that transaction's connection"
)


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Raise what the driver raises as an error of Queuert's tree."""
    try:
        yield
    except sqlite3.Error as error:
        raise mapped(error) from error


def mapped(error: sqlite3.Error) -> Exception:
    """The contract's error for one of the driver's."""
    code = primary_code(error)
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return not_open()
    if code in BUSY:
        return StateUnavailableError(f"{error}: {_ADVICE}")
    if code in _NO_DATABASE:
        return StateError(f"the file cannot be used as a database of Queuert: {error}")
    if isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR:
        return StateUnavailableError(str(error))
    return StateError(str(error))


def primary_code(error: sqlite3.Error) -> int | None:
    """SQLite's result code, without what it adds to it in some cases; None for errors of the driver itself."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def not_open() -> ClosedError:
    """There is no connection to use."""
    return ClosedError("the store is not open: it was closed, never opened, or opened by the process that forked this")


def too_long() -> StateUnavailableError:
    """Another thread of this process has held the connection for too long."""
    return StateUnavailableError(_ADVICE)
