"""Notifications by LISTEN and NOTIFY.

One thread with one connection both listens and sends. It waits on the connection's socket and on a waker, so it costs
nothing while nothing happens. Neither publishers nor subscribers ever wait for the database.

The path of a notification: ``PostgresNotify.publish`` puts it into the listener's outbox and wakes its thread;
``ListenSession.turn`` sends what the outbox holds as often as ``NotifyThrottle`` allows, and dispatches what arrived to
the subscribers. ``Wire`` is the connection.
"""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from queuert.migrations import DEFAULT_SCHEMA
from queuert.notify.listener import Listener, ListenerTimeouts, ListeningNotify, ListenSession, Subscribers, Waker
from queuert.state.postgres.settings import PostgresSettings

__all__ = ["ListenerTimeouts", "PostgresNotify"]

SHORTEST, LONGEST = 0.002, 0.01
"""Seconds that notifications which come one upon the other wait for each other: twice as long each time, up to the
longest.

Each sending is a transaction, and one more for each that listens, on the processors that should run jobs: sent each two
milliseconds, the notifications of a client that starts one chain after the other took it a tenth of its time.
"""

MANY = 100
LONGEST_OF_MANY = 0.04
"""Seconds, at the longest, while each sending has so many keys to tell: of ten thousand chains a second."""


class NotifyThrottle:
    """Says from when on notifications may be sent again."""

    def __init__(self) -> None:
        self._seconds = SHORTEST
        self._many = False
        self.next_at = 0.0
        """The next sending, at the earliest (monotonic)."""

    def begin(self, now: float) -> bool:
        """Whether some may be sent now; if so they count. If they had waited for it, others will for longer."""
        if now < self.next_at:
            return False
        waited = now < self.next_at + self._seconds
        self._seconds = min(2 * self._seconds, LONGEST_OF_MANY if self._many else LONGEST) if waited else SHORTEST
        self.next_at = now + self._seconds
        return True

    def sent(self, now: float, keys: int = 1) -> None:
        """They were sent, and told of so many keys."""
        self._many = keys >= MANY
        self.next_at = max(self.next_at, now + self._seconds)


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
        self.notifications: list[tuple[str, str]] = []
        """The channels and texts that have arrived, oldest first."""
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

    def ask(self, query: str, parameters: Sequence[str] | None = None, *, limit: float) -> PGresult | None:
        """Run a query (several, separated by semicolons, where there are no parameters) and return the last result.

        Raises:
            QueryRejected: the server answered with an error.
            psycopg.OperationalError: the connection is lost, or no answer came within ``limit`` seconds.
        """
        if parameters is None:
            self._pgconn.send_query(query.encode())
        else:
            self._pgconn.send_query_params(query.encode(), [parameter.encode() for parameter in parameters])
        results = self._read_results(limit)
        self._collect()
        for result in results:
            if result.status in _FAILED:
                self._refuse(result)
        return results[-1] if results else None

    def notify(self, texts: Sequence[tuple[str, str]], limit: float) -> None:
        """Send texts on their channels.

        Calls in a row take the server half the time of a query over a list. NOTIFY would be quicker still, but to
        pg_stat_statements, which tells statements apart, each of its texts would be a statement of its own.
        """
        calls = [_QUICKLY]
        parameters: list[str] = []
        for channel, text in texts:
            parameters += (channel, text)
            calls.append(f"pg_notify(${len(parameters) - 1}, ${len(parameters)})")
        self.ask(f"SELECT {', '.join(calls)}", parameters, limit=limit)

    def wait(self, timeout: float) -> None:
        """Wait for the server, the bell, or the end of ``timeout`` seconds; returns at once if something is there.

        Raises:
            psycopg.OperationalError: the connection is lost.
        """
        poll = select.poll()
        poll.register(self._pgconn.socket, select.POLLIN)
        poll.register(self._waker.descriptor, select.POLLIN)
        ready = dict(poll.poll(0 if self.notifications else max(0.0, timeout) * 1000))
        if self._waker.descriptor in ready:
            self._waker.clear()
        if self._pgconn.socket in ready:
            self._pgconn.consume_input()
            self.last_received = time.monotonic()
            self._collect()

    def _read_results(self, limit: float) -> list[PGresult]:
        deadline = time.monotonic() + limit
        results: list[PGresult] = []
        while True:
            unsent = self._pgconn.flush()
            poll = select.poll()
            poll.register(self._pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
            # What has come is read, however late this process is to look.
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise psycopg.OperationalError(f"the server did not answer within {limit:g} seconds")
            # Also when only writing was possible: it reads what is there, and does not wait.
            self._pgconn.consume_input()
            self.last_received = time.monotonic()
            while not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is None:
                    return results
                results.append(result)

    def _collect(self) -> None:
        while (notice := self._pgconn.notifies()) is not None:
            # Anybody may notify, and a database without an encoding passes any bytes on.
            self.notifications.append((notice.relname.decode(errors="replace"), notice.extra.decode(errors="replace")))

    def _refuse(self, result: PGresult) -> None:
        message = result.error_message.decode(errors="replace").strip()
        if self._pgconn.status != ConnStatus.OK:
            raise psycopg.OperationalError(message)
        raise QueryRejected(message, (result.error_field(DiagnosticField.SQLSTATE) or b"").decode())


# Nobody needs a notification after a crash, so its commit need not wait for the disk. Set for this one transaction,
# because a setting of the session would get lost in a pooler.
_QUICKLY = "set_config('synchronous_commit', 'off', true)"

# Read-only transaction: this is a standby, or became one. Another connection may lead to the primary.
_READ_ONLY = "25006"

DEAF = (
    "a notification sent as a test did not arrive; most likely the connection goes through a pooler in transaction"
    " mode. Give a connection string that leads to Postgres itself, as listen_dsn. Until then everybody polls"
)


class PostgresSession(ListenSession):
    """One connection, which listens and sends."""

    def __init__(
        self, connect: Callable[[], Wire], listener: Listener, times: ListenerTimeouts, *, schema: str
    ) -> None:
        """Connect.

        Raises:
            psycopg.OperationalError: that did not work.
        """
        self._wire = connect()
        self._connect = connect
        self._schema = schema
        self._throttle = NotifyThrottle()
        super().__init__(listener, times, f"{schema}_", on_deaf=DEAF)

    def close(self) -> None:
        """Disconnect."""
        self._wire.close()

    def _may_send(self) -> bool:
        return self._throttle.begin(time.monotonic())

    def send(self, limit: float) -> None:
        keys = sum([1 if keys is None else len(keys) for keys in self._pending.keys.values()])
        super().send(limit)
        self._throttle.sent(time.monotonic(), keys)

    def _send(self, texts: Sequence[tuple[str, str]], limit: float) -> None:
        try:
            self._wire.notify(texts, limit)
        except psycopg.OperationalError:
            raise
        except Exception as error:
            if isinstance(error, QueryRejected) and error.sqlstate == _READ_ONLY:
                raise psycopg.OperationalError(str(error)) from error
            self._listener.dropped(str(error))

    def _wait(self) -> None:
        wire, probe = self._wire, self._times.probe
        if time.monotonic() >= wire.last_received + probe:
            wire.ask("SELECT 1", limit=self._times.answer)
        probe_at = wire.last_received + probe
        send_at = self._throttle.next_at if self._pending.keys else probe_at
        wire.wait(self._next_deadline(probe_at, send_at) - time.monotonic())

    def _received(self) -> list[tuple[str, str]]:
        received, self._wire.notifications = self._wire.notifications, []
        return received

    def _join(self, channels: Sequence[str]) -> None:
        self._wire.ask(";".join(f'LISTEN "{channel}"' for channel in channels), limit=self._times.answer)

    def _leave(self, channels: Sequence[str]) -> None:
        self._wire.ask(";".join(f'UNLISTEN "{channel}"' for channel in channels), limit=self._times.answer)

    def _begin_test(self) -> tuple[str, str]:
        channel = f"{self._schema}_test_{secrets.token_hex(8)}"
        answer = self._wire.ask(f'LISTEN "{channel}"; SELECT pg_backend_pid()', limit=self._times.answer)
        if answer is not None and answer.get_value(0, 0) == str(self._wire.backend_pid).encode():
            self._wire.notify([(channel, "")], self._times.answer)
            return channel, ""
        # There is a pooler. In transaction mode a notification to oneself would pass by chance, since it comes while
        # the pooler still lends us its sender; one from elsewhere comes when it no longer does.
        sender = self._connect()
        try:
            sender.notify([(channel, "")], self._times.answer)
        finally:
            sender.close()
        return channel, ""

    def _fail(self, error: str) -> None:
        super()._fail(error)
        # The pooler's connection should not go on listening for nobody.
        self._wire.ask("UNLISTEN *", limit=self._times.answer)


class PostgresNotify(ListeningNotify):
    """Notifications by LISTEN and NOTIFY on the channels ``<schema>_jobs``, ``<schema>_chains`` and
    ``<schema>_leases``.

    While it is open it keeps one connection and one thread. The connection is watched (keepalives, and a probe after
    a silence) and made again when it is lost; everybody is then told to look once. It needs a way to Postgres itself,
    or through a pooler in session mode: in transaction mode sending works, but listening cannot. That is noticed and
    reported once as :class:`~queuert.observability.events.ListenerLost`, and sleepers poll.

    Notifications are sent in a transaction of their own, many at a time, so that commits of jobs never queue for
    Postgres' notification lock. A forked child begins with an adapter that is closed and has no subscribers.

    Args:
        dsn: a libpq connection string or URI. No privileges are needed beyond connecting.
        schema: where the tables are; the channels are named for it.
        times: limits and intervals.

    Raises:
        ConfigurationError: the schema is no plain identifier, or libpq does not understand the connection string.

    Example:
        >>> notify = PostgresNotify("postgresql://localhost/app")
        >>> client = Client(PostgresState(dsn), job_types, notify=notify)  # doctest: +SKIP
    """

    def __init__(self, dsn: str, *, schema: str = DEFAULT_SCHEMA, times: ListenerTimeouts | None = None) -> None:
        self._settings = PostgresSettings(dsn=dsn, schema=schema, application_name="queuert notify")
        self._times = times or ListenerTimeouts()
        super().__init__()

    def __repr__(self) -> str:
        return f"PostgresNotify(schema={self._settings.schema!r})"

    def _new_listener(self, subscribers: Subscribers) -> Listener:
        return Listener("PostgresNotify", self._times.backoff, subscribers, self._new_session)

    def _new_session(self, listener: Listener) -> PostgresSession:
        return PostgresSession(
            lambda: Wire.connect(self._settings, listener.waker),
            listener,
            self._times,
            schema=self._settings.schema,
        )
