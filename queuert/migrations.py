"""Migrates the schema of a Postgres store. Only one migrator runs at a time, however many are started.

Alembic is imported only when it is needed, as the import takes a third of a second.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql as sql_text
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import InsufficientPrivilege, LockNotAvailable

from queuert.errors import ConfigurationError, MigrationError, RightMissingError, StateUnavailableError
from queuert.schema_names import DEFAULT_SCHEMA, check_schema_name

if TYPE_CHECKING:
    from alembic.config import Config

_LOCK_CLASS = 0x51455254  # "QERT": keeps these advisory locks apart from other programs'.
_IDLE_MILLISECONDS = "10000"
"""The idle timeout of a migrator's transaction, which runs its statements one right after the other."""

_LONGEST_WAIT = 1.0
"""Seconds that one statement waits for a table. All who come later wait behind it, so it gives up soon, and is
repeated."""

_PAUSE = 2.0
"""Seconds between two attempts, in which those who waited go on."""

_RIGHTS = (
    "run it as the owner of the schema, which needs no other right. To make the schema, a login needs CREATE ON "
    "DATABASE; or one that has it runs CREATE SCHEMA name AUTHORIZATION owner"
)


def checked_dsn(dsn: str) -> dict[str, Any]:
    """Return the parameters of a connection string.

    Raises:
        ConfigurationError: libpq cannot parse it, or takes a part of a password for the host or the port. The message
            does not repeat it, as it may contain a password.
    """
    found: dict[str, Any] | None = None
    with suppress(psycopg.Error):
        found = dict(conninfo_to_dict(dsn))
    if found is not None:
        _check_host(found)
        return found
    scheme, separator, _ = dsn.partition("://")
    driver = "; leave out the driver after +" if separator and "+" in scheme else ""
    raise ConfigurationError(f"libpq cannot parse the connection string: write postgresql://user@host/database{driver}")


def _check_host(parameters: dict[str, Any]) -> None:
    """Refuse what follows an ``@``, a ``/`` or a ``:`` in a password: errors of the driver would show it."""
    # An abstract Unix socket begins with an @, and the directory of another one, which may have one, with a /.
    hosts, ports = (str(parameters.get(name) or "").split(",") for name in ("host", "port"))
    if any("@" in host[1:] and not host.startswith("/") for host in hosts):
        raise ConfigurationError("the host in the connection string must have no @: write %40 for an @ in a password")
    if not all(port.strip() == "" or port.strip().isdecimal() for port in ports):
        raise ConfigurationError(
            "the port in the connection string must be a number: write %40, %2F and %3A for @, / and : in a password"
        )


def forget_login(error: BaseException) -> None:
    """Remove the connection from an error of psycopg, and from those of the other hosts that it tried before: it keeps
    the password, which reports of errors may show.

    What the caller is handling meanwhile is no business of this. Errors can refer to each other in a circle.
    """
    found: BaseException | None = error
    seen = set[int]()
    while isinstance(found, psycopg.Error) and id(found) not in seen:
        seen.add(id(found))
        if getattr(found, "_pgconn", None) is not None:
            found._pgconn = None
        found = found.__cause__ or found.__context__ if isinstance(found, psycopg.OperationalError) else None


@contextmanager
def forgetting_login() -> Iterator[None]:
    """Remove the connection from the errors of psycopg of the block: those of an attempt to connect have one."""
    try:
        yield
    except psycopg.Error as error:
        forget_login(error)
        raise


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

    A login that owns the schema needs no other right. One that does not needs CREATE on the database, to make it.

    ``dsn`` is a libpq connection string or URI to Postgres itself: a pooler in transaction mode would lose the lock
    that keeps migrators apart. ``lock_timeout`` is how many seconds to wait for another migrator, and for tables that
    long transactions use. A statement waits for a table for a second at most, since all who need the table meanwhile
    wait behind it; then its revision is rolled back and repeated after a pause. Indexes of existing tables are built
    beside starts and finishes, and one that was interrupted is built anew.

    Raises:
        MigrationError: another migrator or a long transaction kept a lock for too long, or a statement failed. The
            failed revision was rolled back, except for an index that it had built: run it again.
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
    """Return the SQL that ``upgrade`` runs on an empty database (or between ``from:to`` revisions).

    Between revisions, run it statement by statement, as psql does: some cannot run in a transaction with others.
    """
    output = io.StringIO()
    write_sql(output, schema=schema, revision=revision)
    return output.getvalue()


def write_sql(output: io.StringIO, *, schema: str, revision: str) -> None:
    """Write the SQL to ``output``, one statement a call."""
    from alembic import command

    with _alembic_errors(f"the SQL for revision {revision!r}"):
        command.upgrade(_config(schema, output_buffer=output), revision, sql=True)


def status(dsn: str, *, schema: str = DEFAULT_SCHEMA) -> MigrationStatus:
    """Return the revision of a database, and the revisions that it lacks.

    Raises:
        StateUnavailableError: the database cannot be reached.
        RightMissingError: the login may not read it.
        MigrationError: this version of Queuert does not know its revision, which a newer version has written.
    """
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(_config(schema))
    head = scripts.get_current_head() or ""
    with connect_to(dsn) as connection:
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
    except InsufficientPrivilege as error:
        raise RightMissingError(error.diag.message_primary or "permission denied") from error
    if row is None:
        return None
    (revision,) = row
    return str(revision)


def build_index(operations: Any, name: str, table: str, definition: str) -> None:
    """Build an index of a table that may have rows, beside reads and writes. Revisions pass Alembic's ``op``.

    ``definition`` follows the name of the table. What the revision did before is committed, since this is possible in
    no transaction; so what comes later in the revision must do no harm when it is repeated. An index that is there is
    kept. One whose build was interrupted is invalid: it is dropped and built anew. An empty table is locked instead,
    for a moment: the build beside writes would wait for all transactions of the database.
    """
    context = operations.get_context()
    if _is_empty(context, table):
        operations.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {table} {definition}")
        return
    with context.autocommit_block():
        if context.as_sql or _is_invalid(context, name):
            operations.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        if not context.as_sql:
            # It waits for all transactions that began before, and no read or write waits behind it.
            operations.execute(f"SET lock_timeout = {context.config.attributes['lock_milliseconds']}")
        operations.execute(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {table} {definition}")
        if not context.as_sql:
            operations.execute(f"SET lock_timeout = {_milliseconds(_LONGEST_WAIT)}")


def _is_empty(context: Any, table: str) -> bool:
    if context.as_sql:  # A script that creates all tables.
        return not context.get_current_heads()
    return not context.bind.exec_driver_sql("SELECT pg_relation_size(to_regclass(%s))", (table,)).scalar()


def _is_invalid(context: Any, name: str) -> bool:
    query = "SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass(%s) AND NOT indisvalid)"
    return bool(context.bind.exec_driver_sql(query, (name,)).scalar())


def _milliseconds(seconds: float) -> int:
    return min(max(1, round(seconds * 1000)), 2**31 - 1)


def _run(dsn: str, schema: str, lock_timeout: float, name: str, revision: str) -> None:
    from alembic import command
    from sqlalchemy.exc import OperationalError

    check_schema_name(schema)

    def connect() -> psycopg.Connection[Any]:
        connection = connect_to(dsn)
        milliseconds = str(_milliseconds(min(lock_timeout, _LONGEST_WAIT)))
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

    config = _config(schema, connect=connect)
    config.attributes["lock_milliseconds"] = _milliseconds(lock_timeout)
    with only_migrator(dsn, schema, lock_timeout), _alembic_errors(f"{name} of schema {schema!r} to {revision!r}"):
        deadline = time.monotonic() + lock_timeout
        while True:
            try:
                getattr(command, name)(config, revision)
                return
            except OperationalError as error:
                if not isinstance(error.orig, LockNotAvailable) or time.monotonic() + _PAUSE >= deadline:
                    raise
            time.sleep(_PAUSE)


@contextmanager
def _alembic_errors(what: str) -> Iterator[None]:
    from alembic.script.revision import RevisionError
    from alembic.util import CommandError
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except (DBAPIError, CommandError, RevisionError) as error:
        cause = getattr(error, "orig", None) or error
        if isinstance(cause, InsufficientPrivilege):
            cause = f"{cause.diag.message_primary}; {_RIGHTS}"
        raise MigrationError(f"{what} failed: {cause}") from error


@contextmanager
def only_migrator(dsn: str, schema: str, timeout: float) -> Iterator[None]:
    """Holds the advisory lock of the schema, on a connection of its own.

    It polls for the lock instead of waiting in the server: a waiting statement holds a snapshot, and CREATE INDEX
    CONCURRENTLY in the migrator that has the lock waits for all snapshots, so the two would wait for each other.
    """
    deadline = time.monotonic() + timeout
    with connect_to(dsn, autocommit=True) as connection:
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
    query = "SELECT pg_try_advisory_lock(%s, hashtext(%s))"
    [(locked,)] = connection.execute(query, (_LOCK_CLASS, schema)).fetchall()
    return bool(locked)


def connect_to(dsn: str, *, autocommit: bool = False) -> psycopg.Connection[Any]:
    """Return a connection of a migrator.

    Raises:
        StateUnavailableError: the database cannot be reached.
        ConfigurationError: libpq cannot parse the connection string.
    """
    checked_dsn(dsn)
    try:
        with forgetting_login():
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
