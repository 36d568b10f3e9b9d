"""The schema of a run: it is created, emptied between measurements, and dropped."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from queuert import migrations
from queuert.errors import StateError, StateUnavailableError

PREFIX = "queuert_bench_"
_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers")
_LOCK_TIMEOUT = "10s"

_TABLE = """
CREATE TABLE {schema}.bare_job (
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    scheduled_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at      timestamptz,
    lease_expires_at timestamptz,
    lease_token      uuid,
    attempt          integer NOT NULL DEFAULT 0,
    id               text COLLATE "C" PRIMARY KEY,
    type             text COLLATE "C" NOT NULL,
    status           text COLLATE "C" NOT NULL DEFAULT 'ready',
    holder           text,
    input            jsonb NOT NULL,
    output           jsonb
) WITH (fillfactor = 70);
CREATE INDEX bare_job_ready ON {schema}.bare_job (type, scheduled_at) WHERE status = 'ready';
"""


class Scratch:
    """The tables of Queuert and of bare SQL, in a schema of their own."""

    def __init__(self, dsn: str, schema: str, connection: psycopg.Connection[Any]) -> None:
        self.dsn = dsn
        self.schema = schema
        self._connection = connection

    @property
    def server(self) -> str:
        """Return the server's version."""
        return self._connection.info.parameter_status("server_version") or "unknown"

    def server_settings(self) -> dict[str, str]:
        """Return the server's settings of durability and of memory for pages."""
        rows = self._connection.execute("SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name",
                                        [list(_SETTINGS)]).fetchall()  # fmt: skip
        return dict(rows)

    def empty(self) -> None:
        """Delete all jobs, and update the planner's statistics."""
        for statement in ("TRUNCATE {0}.job, {0}.bare_job CASCADE", "ANALYZE {0}.job", "ANALYZE {0}.bare_job"):
            self._connection.execute(SQL(statement).format(Identifier(self.schema)))

    def analyze(self) -> None:
        """Update the planner's statistics."""
        for table in ("job", "bare_job"):
            self._connection.execute(SQL("ANALYZE {}").format(Identifier(self.schema, table)))

    def create(self) -> None:
        """Create the tables."""
        migrations.upgrade(self.dsn, schema=self.schema)
        self._connection.execute(SQL(_TABLE).format(schema=Identifier(self.schema)))

    def drop(self) -> None:
        """Drop the schema.

        Raises:
            StateError: its tables were locked for too long; the message says how to drop it.
        """
        statement = SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(self.schema))
        try:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                connection.execute("SELECT set_config('lock_timeout', %s, false)", [_LOCK_TIMEOUT])
                connection.execute(statement)
        except psycopg.Error as error:
            raise StateError(
                f"could not drop the schema of the benchmark; drop it with: DROP SCHEMA {self.schema} CASCADE ({error})"
            ) from error


@contextmanager
def scratch(dsn: str) -> Iterator[Scratch]:
    """Yield a schema for the length of a ``with`` block; it is dropped also if the block is interrupted.

    Raises:
        StateUnavailableError: the database cannot be reached.
        MigrationError: the tables cannot be created, such as when the role may not create schemas.
    """
    migrations.checked_dsn(dsn)
    try:
        connection = psycopg.connect(dsn, autocommit=True, connect_timeout=10, application_name="queuert bench")
    except psycopg.OperationalError as error:
        raise StateUnavailableError(f"cannot connect to the database: {error}") from error
    with connection:
        tables = Scratch(dsn, f"{PREFIX}{secrets.token_hex(4)}", connection)
        try:
            tables.create()
            yield tables
        finally:
            tables.drop()
