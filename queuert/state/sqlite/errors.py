"""Maps errors of sqlite3 to errors of Queuert."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from queuert.errors import ClosedError, SchemaMissingError, StateError, StateUnavailableError

BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
"""Codes that say that another connection has locked the database."""
_NO_DATABASE = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
_MISSING = re.compile(
    r"no such table: (\w+\.)?queuert_|no such column: |table (\w+\.)?queuert_\w+ has no column named "
)
_ADVICE = (
    "another transaction has kept the database locked for too long. Keep transactions short, and pass connection= to "
    "starts inside a transaction of a handler"
)


def unusable(problem: str, remedy: str, kind: type[StateError] = StateError) -> StateError:
    """Return the error of a file that cannot be used as it is."""
    error = kind(f"{problem}: {remedy}")
    error.remedy = remedy
    return error


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Raise errors of the driver as Queuert errors."""
    try:
        yield
    except sqlite3.Error as error:
        raise mapped(error) from error


def mapped(error: sqlite3.Error) -> Exception:
    """Return the contract's error for an error of the driver."""
    code = primary_code(error)
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return not_open()
    if code in BUSY:
        return StateUnavailableError(f"{error}: {_ADVICE}")
    if code in _NO_DATABASE:
        return StateError(f"the file is not a usable SQLite database: {error}")
    if _MISSING.match(str(error)):
        return unusable(
            f"the file must have all tables of Queuert with all columns, got {str(error)!r}",
            "restore it from a backup, or name another file, in which a client or worker creates them",
            SchemaMissingError,
        )
    if isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR:
        return StateUnavailableError(str(error))
    return StateError(str(error))


def primary_code(error: sqlite3.Error) -> int | None:
    """Return SQLite's primary result code; None for errors of the driver itself."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def not_open() -> ClosedError:
    """Return the error of a store without a connection."""
    return ClosedError(
        "the store must be open: it was closed, never opened, or opened by the process that forked this one"
    )


def too_long() -> StateUnavailableError:
    """Return the error of a connection that another thread of this process has used for too long."""
    return StateUnavailableError(_ADVICE)
