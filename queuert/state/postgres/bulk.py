"""Bulk writes: connections for tasks and drivers, and the staging of rows before they become jobs.

A writer of whole DataFrames loads rows into a staging table by COPY, from many processes, and then makes jobs of them
in one transaction (:mod:`queuert.state.postgres.bulk_commit`). This module does not depend on Spark.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from psycopg import Connection, IsolationLevel, errors, sql

from queuert.errors import SchemaMissingError, StateError, StateUnavailableError
from queuert.schema_names import upgrade_command
from queuert.state.postgres.errors import mapped_errors
from queuert.state.postgres.settings import REQUIRED_REVISION, PostgresSettings
from queuert.state.postgres.statements import Statements
from queuert.state.postgres.sync_statements import fetch
from queuert.state.types import STAGING_KEPT

_PREFIX = "bulk_stage_"
_MADE_HERE = re.compile(rf"{_PREFIX}[0-9a-f]{{32}}")
STREAM_STAGE = "stream_stage"
"""The table in which rows of micro-batches are staged, for all streams."""

DROP_TIMEOUT = 2.0
"""Seconds to wait for tasks that still load a staging table; after that maintenance drops it later."""


@dataclass(frozen=True, slots=True)
class BulkSettings:
    """The address of the database, and the limits of each transaction, in seconds; 0 for none."""

    dsn: str = field(repr=False)
    schema: str
    statement_timeout: float = 0.0
    lock_timeout: float = 10.0
    connection_check_interval: float = 1.0
    idle_timeout: float = 10.0
    """The driver does nothing between two statements of a transaction, and a COPY is never idle."""

    def limits(self, **others: float) -> dict[str, str]:
        """Return the limits by their names in Postgres, in milliseconds; ``others`` override those of the settings."""
        chosen = {
            "statement_timeout": self.statement_timeout,
            "lock_timeout": self.lock_timeout,
            "client_connection_check_interval": self.connection_check_interval,
            "idle_in_transaction_session_timeout": self.idle_timeout,
            "transaction_timeout": 0.0,  # That of the role or the database would end each long write or read.
            **others,
        }
        return {name: str(round(max(0.0, seconds) * 1000)) for name, seconds in chosen.items()}


class BulkSession:
    """One connection for a bulk write. Each transaction sets its own limits, because a pooler may change servers."""

    def __init__(self, connection: Connection[Any], settings: BulkSettings, sql: Statements) -> None:
        self.connection = connection
        self.settings = settings
        self.sql = sql

    @contextmanager
    def transaction(self, **limits: float) -> Iterator[Connection[Any]]:
        """Open a transaction; errors of psycopg are mapped. ``limits`` override those of the settings."""
        with mapped_errors(self.settings.schema), self.connection.transaction():
            # Rows to stage have arrays with NULL in them, as texts.
            set_for_transaction(self.connection, {**self.settings.limits(**limits), "array_nulls": "on"})
            yield self.connection

    def check_schema(self) -> None:
        """Check that the schema is not older than this version requires.

        Raises:
            SchemaMissingError: the schema is out of date or missing.
        """
        with self.transaction() as connection:
            [(revision,)] = fetch(connection, self.sql.schema_revision) or [("",)]
        if revision < REQUIRED_REVISION:
            raise SchemaMissingError(
                f"schema {self.settings.schema!r} must be at revision {REQUIRED_REVISION} or newer: run "
                f"{upgrade_command(self.settings.schema)}"
            )


def set_for_transaction(connection: Connection[Any], values: Mapping[str, str]) -> None:
    """Set parameters of the server until the transaction ends. Those that its version does not have are left out."""
    connection.execute(
        "SELECT set_config(name, value, true) FROM unnest(%s::text[], %s::text[]) AS chosen (name, value)"
        " WHERE current_setting(name, true) IS NOT NULL",
        (list(values), list(values.values())),
    )


@contextmanager
def bulk_session(settings: BulkSettings, *, application_name: str = "queuert bulk write") -> Iterator[BulkSession]:
    """Open a connection that is closed when the block ends.

    Raises:
        StateUnavailableError: the database cannot be reached.
    """
    arguments = PostgresSettings(
        settings.dsn, settings.schema, prepare_threshold=None, application_name=application_name
    ).connection_arguments()
    with mapped_errors(settings.schema):
        connection = Connection.connect(settings.dsn, **arguments)
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    try:
        yield BulkSession(connection, settings, Statements(settings.schema))
    finally:
        connection.close()


def is_stage(name: str) -> bool:
    """Whether :func:`make_stage` makes names like this. A name that was read from a row can be any text."""
    return _MADE_HERE.fullmatch(name) is not None


def checked_stage(name: str) -> str:
    """Return the name if it is that of a staging table, which may be dropped.

    Raises:
        StateError: the name is not one of a staging table.
    """
    if not is_stage(name):
        raise StateError(f"a staging table must be named {_PREFIX} and 32 hexadecimal digits, got {name[:80]!r}")
    return name


def staged(statement: bytes, stage: str, *, columns: Sequence[str] = ()) -> bytes:
    """Returns a statement with the names of its staging table, and of columns, filled in and quoted.

    Raises:
        StateError: the name is not one of a staging table.
    """
    table = stage if stage == STREAM_STAGE else checked_stage(stage)
    texts = {"stage": identifier(table), "columns": ", ".join(map(identifier, columns))}
    for name, text in texts.items():
        statement = statement.replace(b"{%s}" % name.encode(), text.encode())
    return statement


def identifier(name: str) -> str:
    """Return a quoted SQL identifier."""
    return sql.Identifier(name).as_string(None)


def ttl_seconds(staging_ttl: float) -> int:
    """Return the time as the columns ``staging_ttl`` have it, in whole seconds, at most 68 years.

    No value of an integer can break the sweeps of others.
    """
    return min(math.ceil(staging_ttl), 2**31 - 1)


def make_stage(session: BulkSession, write_id: str, *, staging_ttl: float = STAGING_KEPT) -> str:
    """Create the staging table of a bulk write and return its name. It is swept when nothing has used it for
    ``staging_ttl`` seconds."""
    name = _PREFIX + uuid.uuid4().hex
    with session.transaction() as connection:
        connection.execute(staged(session.sql.bulk_make_stage, name))
        connection.execute(
            session.sql.bulk_record_stage, {"name": name, "write_id": write_id, "staging_ttl": ttl_seconds(staging_ttl)}
        )
    return name


def touch_stage(session: BulkSession, stage: str) -> bool:
    """Record that a staging table is in use, so that maintenance keeps it. Returns False if it was dropped."""
    with session.transaction() as connection:
        return bool(fetch(connection, session.sql.bulk_touch_stage, {"name": stage}))


def copy_rows(session: BulkSession, stage: str, columns: Sequence[str], chunks: Iterable[bytes | memoryview]) -> None:
    """Load rows into a staging table in one transaction, all or none. ``chunks`` are whole rows in the text format of
    COPY.

    Raises:
        StateError: the database refused a row; none of these rows was staged.
    """
    statement = staged(session.sql.bulk_copy, stage, columns=columns)
    with session.transaction() as connection, connection.cursor() as cursor, cursor.copy(statement) as copy:
        for chunk in chunks:
            copy.write(chunk)


def drop_stage(session: BulkSession, stage: str, *, only_idle: bool = False, older_than: float | None = None) -> bool:
    """Drop the staging table of a bulk write. Returns False if tasks still load it; maintenance will drop it later.

    With ``only_idle`` it is kept if it was used since :func:`sweep_staging` found it idle.

    Raises:
        StateError: the name is not one of a staging table, or the database refused to drop it.
    """
    checked_stage(stage)
    try:
        with session.transaction(lock_timeout=DROP_TIMEOUT) as connection:
            if not only_idle:
                connection.execute(session.sql.bulk_delete_stage_record, {"name": stage})
            elif not fetch(connection, session.sql.bulk_delete_idle_record, {"name": stage, "seconds": older_than}):
                return False
            connection.execute(staged(session.sql.bulk_drop_stage, stage))
    except StateUnavailableError as error:
        if not isinstance(error.__cause__, errors.LockNotAvailable):
            raise
        return False
    return True


def sweep_staging(session: BulkSession, *, older_than: float | None = None) -> list[str]:
    """Drop the staging tables and the staged rows of streams that nothing has touched for the time that their own write
    has chosen, or for ``older_than`` seconds instead, which may lose what a slow write has staged.

    Their drivers have died. Returns the names of the dropped tables. A table that is being loaded is locked and kept.
    Only the role that created a table can drop it; the tables of other roles are kept, and so are tables that cannot be
    dropped for another reason. Records with names that no bulk write makes are deleted, and no table is dropped for
    them.
    """
    dropped = []
    for name in _idle_stages(session, older_than):
        try:
            if drop_stage(session, name, only_idle=True, older_than=older_than):
                dropped.append(name)
        except StateError:
            # A role that may create such tables can create one that cannot be dropped. It must not keep the others.
            if session.connection.closed:
                raise
    with session.transaction() as connection:
        connection.execute(session.sql.stream_delete_old, {"seconds": older_than})
    return dropped


def _idle_stages(session: BulkSession, older_than: float | None) -> list[str]:
    with session.transaction() as connection:
        connection.execute(session.sql.bulk_delete_invalid_records)
        return [name for (name,) in fetch(connection, session.sql.bulk_idle_stages, {"seconds": older_than})]
