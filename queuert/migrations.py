"""Migrates the schema of a Postgres store. Only one migrator runs at a time, however many are started.

Alembic is imported only when it is needed, as the import takes a third of a second.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql as sql_text
from psycopg.conninfo import conninfo_to_dict

from queuert.errors import ConfigurationError, MigrationError, StateUnavailableError

if TYPE_CHECKING:
    from alembic.config import Config

DEFAULT_SCHEMA = "queuert"

_LOCK_CLASS = 0x51455254  # "QERT": keeps these advisory locks apart from other programs'.
_IDLE_MILLISECONDS = "10000"
"""The idle timeout of a migrator's transaction, which runs its statements one right after the other."""

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,39}")


def check_schema_name(schema: str) -> str:
    """Return ``schema`` if it is a plain lower-case identifier of at most 40 characters.

    Forty leaves room for what is derived from it, such as notification channels (Postgres allows 63 bytes).

    Raises:
        ConfigurationError: it is not.
    """
    if not _IDENTIFIER.fullmatch(str(schema)):
        raise ConfigurationError(
            f"schema must be 1 to 40 lower-case letters, digits and _, not beginning with a digit, got {schema!r}"
        )
    return schema


def checked_dsn(dsn: str) -> dict[str, Any]:
    """Return the parameters of a connection string.

    Raises:
        ConfigurationError: libpq cannot parse it. The message does not repeat it, as it may contain a password.
    """
    try:
        return dict(conninfo_to_dict(dsn))
    except psycopg.Error:
        pass
    scheme, separator, _ = dsn.partition("://")
    driver = "; leave out the driver after +" if separator and "+" in scheme else ""
    raise ConfigurationError(f"libpq cannot parse the connection string: write postgresql://user@host/database{driver}")


def upgrade_command(schema: str) -> str:
    """Return the command that upgrades this schema."""
    return "queuert migrate up" if schema == DEFAULT_SCHEMA else f"queuert migrate up --schema {schema}"


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """The revision of a database, and the revisions that it lacks."""

    current: str | None
    """The revision of the schema; None if there is no schema."""
    head: str
    """The newest revision."""
    pending: tuple[str, ...]
    """The revisions after ``current``, oldest first."""


def upgrade(dsn: str, *, schema: str = DEFAULT_SCHEMA, revision: str = "head", lock_timeout: float = 60.0) -> None:
    """Upgrade the schema to ``revision``, creating it if it does not exist. Running it again does nothing.

    ``dsn`` is a libpq connection string or URI to Postgres itself: a pooler in transaction mode would lose the lock
    that keeps migrators apart. ``lock_timeout`` is how many seconds to wait for another migrator, and for each table
    lock.

    Raises:
        MigrationError: another migrator or a long transaction kept a lock for too long, or a statement failed. The
            failed revision was rolled back.
        StateUnavailableError: the database cannot be reached.
    """
    _run(dsn, schema, lock_timeout, "upgrade", revision)


def downgrade(dsn: str, *, schema: str = DEFAULT_SCHEMA, revision: str, lock_timeout: float = 60.0) -> None:
    """Downgrade the schema to ``revision``, or drop it with ``base``. **This deletes jobs.** Errors as for upgrade."""
    _run(dsn, schema, lock_timeout, "downgrade", revision)


def stamp(dsn: str, *, schema: str = DEFAULT_SCHEMA, revision: str = "head", lock_timeout: float = 60.0) -> None:
    """Record that the schema is at ``revision`` without running anything, after its SQL was applied by hand."""
    _run(dsn, schema, lock_timeout, "stamp", revision)


def sql(*, schema: str = DEFAULT_SCHEMA, revision: str = "head") -> str:
    """Return the SQL that ``upgrade`` runs on an empty database (or between ``from:to`` revisions)."""
    from alembic import command

    output = io.StringIO()
    config = _config(schema, output_buffer=output)
    with _alembic_errors(f"the SQL for revision {revision!r}"):
        command.upgrade(config, revision, sql=True)
    return output.getvalue()


def status(dsn: str, *, schema: str = DEFAULT_SCHEMA) -> MigrationStatus:
    """Return the revision of a database, and the revisions that it lacks.

    Raises:
        StateUnavailableError: the database cannot be reached.
        MigrationError: this version of Queuert does not know its revision, which a newer version has written.
    """
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(_config(schema))
    head = scripts.get_current_head() or ""
    with _connect(dsn) as connection:
        current = _current_revision(connection, schema)
    with _alembic_errors(f"reading revision {current!r}: this version of Queuert does not know it"):
        pending = [script.revision for script in scripts.iterate_revisions("head", current or "base")]
    return MigrationStatus(current, head, tuple(reversed(pending)))


def _current_revision(connection: psycopg.Connection[Any], schema: str) -> str | None:
    query = sql_text.SQL("SELECT version_num FROM {}").format(sql_text.Identifier(schema, "alembic_version"))
    try:
        row = connection.execute(query).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None
    return None if row is None else str(row[0])


def _run(dsn: str, schema: str, lock_timeout: float, name: str, revision: str) -> None:
    from alembic import command

    check_schema_name(schema)

    def connect() -> psycopg.Connection[Any]:
        connection = _connect(dsn)
        milliseconds = str(max(1, round(lock_timeout * 1000)))
        try:
            # A migrator that hangs would hold the locks of the tables, and so stop the queue, for ever.
            connection.execute(
                "SELECT set_config('lock_timeout', %s, false), "
                "set_config('idle_in_transaction_session_timeout', %s, false)",
                (milliseconds, _IDLE_MILLISECONDS),
            )
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection

    with only_migrator(dsn, schema, lock_timeout), _alembic_errors(f"{name} of schema {schema!r} to {revision!r}"):
        getattr(command, name)(_config(schema, connect=connect), revision)


@contextmanager
def _alembic_errors(what: str) -> Iterator[None]:
    from alembic.script.revision import RevisionError
    from alembic.util import CommandError
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except (DBAPIError, CommandError, RevisionError) as error:
        cause = getattr(error, "orig", None) or error
        raise MigrationError(f"{what} failed: {cause}") from error


@contextmanager
def only_migrator(dsn: str, schema: str, timeout: float) -> Iterator[None]:
    """Holds the advisory lock of the schema, on a connection of its own.

    It polls for the lock instead of waiting in the server: a waiting statement holds a snapshot, and CREATE INDEX
    CONCURRENTLY in the migrator that has the lock waits for all snapshots, so the two would wait for each other.
    """
    deadline = time.monotonic() + timeout
    with _connect(dsn, autocommit=True) as connection:
        while not _try_lock(connection, schema):
            if time.monotonic() >= deadline:
                raise MigrationError(
                    f"another migrator has held the lock of schema {schema!r} for {timeout:g} s: "
                    "wait for it and try again, or find it in pg_locks (locktype advisory)"
                )
            time.sleep(0.1)
        try:
            yield
        finally:
            # Closing the connection releases the lock too, but only once the server notices.
            with suppress(psycopg.Error):
                connection.execute("SELECT pg_advisory_unlock(%s, hashtext(%s))", (_LOCK_CLASS, schema))


def _try_lock(connection: psycopg.Connection[Any], schema: str) -> bool:
    row = connection.execute("SELECT pg_try_advisory_lock(%s, hashtext(%s))", (_LOCK_CLASS, schema)).fetchone()
    return row is not None and bool(row[0])


def _connect(dsn: str, *, autocommit: bool = False) -> psycopg.Connection[Any]:
    checked_dsn(dsn)
    try:
        return psycopg.connect(dsn, autocommit=autocommit, connect_timeout=10, application_name="queuert migrate")
    except psycopg.OperationalError as error:
        raise StateUnavailableError(f"cannot connect to the database: {error}") from error


def _config(schema: str, *, connect: Any = None, output_buffer: io.StringIO | None = None) -> Config:
    from alembic.config import Config

    check_schema_name(schema)
    config = Config(output_buffer=output_buffer)
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    config.attributes.update(schema=schema, connect=connect)
    return config


def script_location() -> Path:
    """Return the directory of the migration scripts: inside an installed package, or beside it in a source tree."""
    package = Path(__file__).parent
    shipped = package / "_migrations"
    return shipped if (shipped / "env.py").exists() else package.parent / "alembic"
