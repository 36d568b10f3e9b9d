"""A database for each test, copied from a template that is migrated once."""

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from queuert.migrations import forgetting_login

_TODAY = "select (clock_timestamp() at time zone 'UTC')::date::text"
_SESSIONS = "select count(*) from pg_stat_activity where datname = %s and backend_type = 'client backend'"
_END_SESSIONS = """select pg_terminate_backend(pid) from pg_stat_activity
where datname = %s and backend_type = 'client backend'"""
_POLL_SECONDS = 0.002
_FILE_COPY_SINCE = 150000


class TemplateDatabases:
    """Makes databases on one server: empty ones, and copies of a template.

    A copy takes about 10 ms on a server that does not flush to the disk, and lets a test commit, listen and open as
    many connections as it likes. The template is made again on the first copy of a new day (UTC, by the server's
    clock): the event log has a table for each day from the one of its migration on. An object belongs to one thread.
    Use it in a `with` block, or call `close`.
    """

    def __init__(self, dsn: str, migrate: Callable[[str], None], *, prefix: str = "queuert_test") -> None:
        """Connect to the server.

        Args:
            dsn: a database of the server, with a role that may create databases; nothing is changed in it.
            migrate: called with the template's connection string, once a day, to build what every copy has.
            prefix: how the names of all databases begin that this object makes.

        Raises:
            psycopg.OperationalError: the server does not answer.
        """
        self._dsn = dsn
        self._migrate = migrate
        self._prefix = f"{prefix}_{os.getpid()}_{secrets.token_hex(3)}"
        self._template: str | None = None
        self._day = ""
        self._count = 0
        with forgetting_login():
            self._admin = psycopg.connect(dsn, autocommit=True)

    def create(self) -> str:
        """Make a copy of the template and return its connection string; the first call makes the template.

        Connections to the template that `migrate` has left open, such as those of a pool, are closed: the server copies
        no database that has any.

        Raises:
            Exception: what `migrate` raised.
        """
        template = self._template_name()
        if not self._wait_for_sessions(template):
            self._admin.execute(_END_SESSIONS, [template])
            self._wait_for_sessions(template)
        return self._create(template)

    def create_empty(self) -> str:
        """Make a database without anything in it and return its connection string."""
        return self._create("template0")

    def drop(self, dsn: str) -> None:
        """Drop a database that this object made, after the sessions that are about to leave it have left.

        Sessions that stay for two seconds are ended: a test forgot to close them.
        """
        self._drop(conninfo_to_dict(dsn)["dbname"])

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Yield the connection string of a copy of the template; drop the copy at the end of the block."""
        dsn = self.create()
        try:
            yield dsn
        finally:
            self.drop(dsn)

    def close(self) -> None:
        """Drop the template and disconnect. Copies are kept, unless they were dropped."""
        try:
            self._drop_template()
        finally:
            self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _template_name(self) -> str:
        today = self._today()
        if self._day != today:
            self._drop_template()
            self._day = today
        if self._template is None:
            name = f"{self._prefix}_template"
            dsn = self._create("template0", name)
            try:
                self._migrate(dsn)
            except BaseException:
                self._drop(name)
                raise
            self._template = name
        return self._template

    def _drop_template(self) -> None:
        if self._template is not None:
            self._drop(self._template)
            self._template = None

    def _create(self, source: str, name: str | None = None) -> str:
        """For a database of this size, copying files is about twice as fast as writing them to the write-ahead log."""
        if name is None:
            self._count += 1
            name = f"{self._prefix}_{self._count}"
        command = sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(source))
        if self._admin.info.server_version >= _FILE_COPY_SINCE:
            command += sql.SQL(" strategy = file_copy")
        self._admin.execute(command)
        return with_database(self._dsn, name)

    def _drop(self, name: object) -> None:
        """FORCE sleeps for 100 ms if a session just ends, so it is the last resort."""
        self._wait_for_sessions(str(name))
        self._admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(str(name))))

    def _wait_for_sessions(self, name: str, timeout: float = 2.0) -> bool:
        """Return whether all have left."""
        deadline = time.monotonic() + timeout
        while (open := self._sessions(name)) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return not open

    def _today(self) -> str:
        row = self._admin.execute(_TODAY).fetchone()
        return "" if row is None else str(row[0])

    def _sessions(self, name: str) -> int:
        row = self._admin.execute(_SESSIONS, [name]).fetchone()
        return 0 if row is None else int(row[0])


def with_database(dsn: str, name: str) -> str:
    """Return the connection string of another database of the same server: a URI for a URI, else `key=value` pairs."""
    if dsn.startswith(("postgresql://", "postgres://")):
        return urlsplit(dsn)._replace(path=f"/{quote(name, safe='')}").geturl()
    return make_conninfo(dsn, dbname=name)
