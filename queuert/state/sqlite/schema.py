"""Creates the tables of a file, and migrates older ones."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time

from queuert.errors import SchemaMissingError
from queuert.state.named_sections import read_file
from queuert.state.sqlite.connection import LockedConnection
from queuert.state.sqlite.errors import primary_code, unusable

SCHEMA_VERSION = 17
"""The version in the table ``queuert_schema``; the file's ``user_version`` is left to the application."""

UPGRADES: tuple[str, ...] = (
    "add_progress",
    "add_attempt_trace_context",
    "add_type_limits",
    "add_failures",
    "add_activity",
    "add_schedule_owners",
    "add_max_attempts",
    "add_steps",
    "add_paused_by",
    "add_sent_events",
    "add_key_order",
    "add_event_log",
    "add_phases",
    "add_webhooks",
    "add_stale_at",
    "add_type_traits",
)
"""Names of the sections of ``schema.sql`` that migrate from version 1 to 2, from 2 to 3, and so on."""

_EXISTS = re.compile("duplicate column name|already exists")
"""What SQLite says of a column, a table or an index that a migration adds and that is there."""

_PAUSE = 0.01


def prepare(link: LockedConnection) -> None:
    """Create the tables, or migrate them.

    Raises:
        SchemaMissingError: a newer version of Queuert has written the file; nothing was changed.
        StateError: the file is not a database, or does not say which version of the tables it has.
    """
    with link.held() as connection:
        found = stored_version(connection)
    if found < SCHEMA_VERSION:
        with link.writing() as connection:
            _upgrade(connection)
    elif found > SCHEMA_VERSION:
        raise unusable(
            f"the file has version {found} of Queuert's tables, but this program knows only {SCHEMA_VERSION}",
            "upgrade queuert",
            SchemaMissingError,
        )


_WRITE_VERSION = (
    f"restore the file from a backup; or write the version, which was {SCHEMA_VERSION} if this queuert has opened the "
    "file"
)


def stored_version(connection: sqlite3.Connection) -> int:
    """Return the version of the tables in a file, 0 if it has none.

    Raises:
        StateError: it cannot be read, since somebody has edited it.
    """
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'queuert_schema'").fetchone():
        return 0
    found = [version for (version,) in connection.execute("SELECT version FROM queuert_schema")]
    if len(found) != 1 or not isinstance(found[0], int) or found[0] < 1:
        raise unusable(
            f"the table queuert_schema must have one row with the version of the tables, got {found[:3]}",
            _WRITE_VERSION,
        )
    return found[0]


def missing_parts(connection: sqlite3.Connection) -> list[str]:
    """Return which tables and columns of this version a file does not have, such as ``queuert_job.status``."""
    with contextlib.closing(sqlite3.connect(":memory:")) as new:
        _execute_all(new, "schema")
        wanted, there = _columns(new), _columns(connection)
    tables = [table for table in wanted if table not in there]
    columns = [f"{table}.{name}" for table, names in wanted.items() for name in sorted(names - there.get(table, names))]
    return [*tables, *columns]


def _columns(connection: sqlite3.Connection) -> dict[str, set[str]]:
    found = connection.execute(
        "SELECT one.name, part.name FROM sqlite_master AS one, pragma_table_info(one.name) AS part "
        "WHERE one.type = 'table' AND one.name LIKE 'queuert%' ORDER BY one.name"
    )
    columns = dict[str, set[str]]()
    for table, column in found:
        columns.setdefault(table, set()).add(column)
    return columns


def _upgrade(connection: sqlite3.Connection) -> None:
    # Another process may have migrated the file meanwhile.
    found = stored_version(connection)
    try:
        if found == 0:
            _execute_all(connection, "schema")
            connection.execute("INSERT INTO queuert_schema (version) VALUES (?)", [SCHEMA_VERSION])
            return
        for name in UPGRADES[found - 1 : SCHEMA_VERSION - 1]:
            _execute_all(connection, name)
    except sqlite3.OperationalError as error:
        if not _EXISTS.search(str(error)):
            raise
        said = f"version {found}" if found else "no version"
        raise unusable(
            f"the table queuert_schema must say which version the tables have, got {said}, but they are newer "
            f"({error})",
            _WRITE_VERSION,
        ) from error
    connection.execute("UPDATE queuert_schema SET version = ?", [max(found, SCHEMA_VERSION)])


def _execute_all(connection: sqlite3.Connection, name: str) -> None:
    # executescript() would commit first.
    for statement in read_file("queuert.state.sqlite", "schema.sql")[name].split(";\n"):
        connection.execute(statement)


def write_ahead(link: LockedConnection, *, timeout: float) -> None:
    """Switch the file to write-ahead logging, so that it can be read while it is written. The file keeps the mode.

    Raises:
        StateError: the file system does not support it.
    """
    with link.held() as connection:
        found = _set_mode(connection, time.monotonic() + timeout)
    if found != "wal":
        raise unusable(f"journal mode of the file must be 'wal', got {found!r}", "use a local disk")


def _set_mode(connection: sqlite3.Connection, until: float) -> str:
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            # The change locks the whole file, and SQLite does not wait for that by itself.
            if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(_PAUSE)
