"""A connection that never makes its thread wait longer than it wants to.

Queries are sent and read through libpq's non-blocking calls, because a query in psycopg's own has no time limit: with
a peer that vanished without a word it would wait for ever. Notifications that arrive meanwhile are kept.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from queuert.notify.waker import Waker
from queuert.state.postgres.settings import PostgresSettings

_FAILED = frozenset({ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE})


class QueryRejected(Exception):
    """The server answered with an error and the connection stands; ``sqlstate`` says which error."""

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class Wire:
    """One connection, used by one thread."""

    def __init__(self, connection: psycopg.Connection[Any], waker: Waker) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._waker = waker
        self._notifications: list[tuple[str, str]] = []
        self.last_received = time.monotonic()
        """When the server was last heard of."""

    @classmethod
    def connect(cls, settings: PostgresSettings, waker: Waker) -> Wire:
        """Connect, within the settings' time limit.

        Raises:
            psycopg.OperationalError: that did not work.
        """
        return cls(psycopg.connect(settings.dsn, **settings.connection_arguments()), waker)

    @property
    def backend_pid(self) -> int:
        """The server process that answers, as it was told at connecting; a pooler tells a number of its own."""
        return self._pgconn.backend_pid

    def close(self) -> None:
        """Disconnect. Safe to repeat."""
        self._connection.close()

    def ask(self, query: str, parameters: Sequence[str] | None = None, *, limit: float) -> list[list[str]]:
        """Run a query (several, separated by semicolons, where there are no parameters) and return the last rows.

        Raises:
            QueryRejected: the server answered with an error.
            psycopg.OperationalError: the connection is lost, or no answer came within ``limit`` seconds.
        """
        deadline = time.monotonic() + limit
        if parameters is None:
            self._pgconn.send_query(query.encode())
        else:
            self._pgconn.send_query_params(query.encode(), [parameter.encode() for parameter in parameters])
        results = self._read_results(deadline, limit)
        self._collect()
        for result in results:
            if result.status in _FAILED:
                self._refuse(result)
        return _rows(results[-1]) if results else []

    def wait(self, timeout: float) -> None:
        """Wait for the server, the bell, or the end of ``timeout`` seconds; returns at once if something is there.

        Raises:
            psycopg.OperationalError: the connection is lost.
        """
        poll = select.poll()
        poll.register(self._pgconn.socket, select.POLLIN)
        poll.register(self._waker, select.POLLIN)
        ready = dict(poll.poll(0 if self._notifications else max(0.0, timeout) * 1000))
        if self._waker.fileno() in ready:
            self._waker.clear()
        if self._pgconn.socket in ready:
            self._consume()
            self._collect()

    def take_notifications(self) -> list[tuple[str, str]]:
        """The channels and texts that arrived since the last time, oldest first."""
        taken, self._notifications = self._notifications, []
        return taken

    def _read_results(self, deadline: float, limit: float) -> list[PGresult]:
        results: list[PGresult] = []
        while True:
            self._transfer(deadline, limit)
            while not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is None:
                    return results
                results.append(result)

    def _transfer(self, deadline: float, limit: float) -> None:
        """Move bytes in whatever direction is possible, once."""
        unsent = self._pgconn.flush()
        remaining = deadline - time.monotonic()
        poll = select.poll()
        poll.register(self._pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
        # What has come is read, however late this process is to look.
        if not poll.poll(max(0.0, remaining) * 1000):
            raise psycopg.OperationalError(f"the server did not answer within {limit:g} seconds")
        # Also when only writing was possible: it reads what is there, and does not wait.
        self._consume()

    def _consume(self) -> None:
        self._pgconn.consume_input()
        self.last_received = time.monotonic()

    def _collect(self) -> None:
        while (notice := self._pgconn.notifies()) is not None:
            # Anybody may notify, and a database without an encoding passes any bytes on.
            self._notifications.append((notice.relname.decode(errors="replace"), notice.extra.decode(errors="replace")))

    def _refuse(self, result: PGresult) -> None:
        message = result.error_message.decode(errors="replace").strip()
        if self._pgconn.status != ConnStatus.OK:
            raise psycopg.OperationalError(message)
        raise QueryRejected(message, (result.error_field(DiagnosticField.SQLSTATE) or b"").decode())


def _rows(result: PGresult) -> list[list[str]]:
    columns = range(result.nfields)
    return [[(result.get_value(row, column) or b"").decode() for column in columns] for row in range(result.ntuples)]
