"""Notifications by LISTEN and NOTIFY.

One thread with one connection both listens and sends. It waits on the connection's socket and on a waker, so it costs
nothing while nothing happens. Neither publishers nor subscribers ever wait for the database.

The path of a notification that no store has sent behind a write (see ``PostgresNotify.piggyback``):
``PostgresNotify.publish`` adds it to the listener's outbox and wakes its thread; ``ListenSession.run_once`` sends the
outbox as often as ``NotifyThrottle`` allows, and dispatches what has arrived to the subscribers. ``ListenConnection``
is the connection.
"""

from __future__ import annotations

import secrets
import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from queuert.migrations import forgetting_login
from queuert.notify.adapter import Topic
from queuert.notify.encoding import WILDCARD, encode
from queuert.notify.listener import Listener, ListenerTimeouts, ListeningNotify, ListenSession, Subscribers, Waker
from queuert.passwords import Password
from queuert.schema_names import DEFAULT_SCHEMA
from queuert.state.postgres.settings import PostgresSettings

__all__ = ["ListenerTimeouts", "PostgresNotify"]

MIN_INTERVAL, MAX_INTERVAL = 0.002, 0.01
"""Seconds from one sending to the next. In a stream of notifications the interval doubles each time, up to the maximum.

Each sending is a transaction, and one more in each listener, on the processors that should run jobs. At an interval of
two milliseconds the notifications of a client that starts one chain after the other took a tenth of its time.
"""

MANY_KEYS = 100
MAX_INTERVAL_OF_MANY = 0.04
"""The maximum while each sending has at least so many keys, as when ten thousand chains close in a second."""


class NotifyThrottle:
    """Decides when notifications may be sent: at once after a silence, less often in a stream."""

    def __init__(self) -> None:
        self._interval = MIN_INTERVAL
        self._many_keys = False
        self._lock = threading.Lock()  # Piggybacks begin in the threads that start chains.
        self.next_at = 0.0
        """The earliest time of the next sending, on the monotonic clock."""

    def begin(self, now: float) -> bool:
        """Return whether notifications may be sent now; if so, the interval to the next sending begins.

        If they had to wait, the stream goes on, and the interval doubles.
        """
        with self._lock:
            if now < self.next_at:
                return False
            waited = now < self.next_at + self._interval
            longest = MAX_INTERVAL_OF_MANY if self._many_keys else MAX_INTERVAL
            self._interval = min(2 * self._interval, longest) if waited else MIN_INTERVAL
            self.next_at = now + self._interval
            return True

    def sent(self, now: float, keys: int = 1) -> None:
        """So many keys were sent: the interval counts from here."""
        with self._lock:
            self._many_keys = keys >= MANY_KEYS
            self.next_at = max(self.next_at, now + self._interval)


_FAILED = frozenset({ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE})


class QueryRejected(Exception):
    """The server answered with an error, and the connection is still open; ``sqlstate`` says which error."""

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class ListenConnection:
    """The connection of a session, used by one thread."""

    def __init__(self, connection: psycopg.Connection[Any], waker: Waker) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._waker = waker
        self.notifications: list[tuple[str, str]] = []
        """The channels and texts that have arrived, the oldest first."""
        self.last_received = time.monotonic()
        """When the server last sent something, on the monotonic clock."""

    @classmethod
    def connect(cls, settings: PostgresSettings, waker: Waker) -> ListenConnection:
        """Connect, within the timeout of the settings.

        Raises:
            psycopg.OperationalError: the server cannot be reached, or rejects the connection.
        """
        with forgetting_login():
            connection = psycopg.connect(settings.current_dsn(), **settings.connection_arguments())
        return cls(connection, waker)

    @property
    def backend_pid(self) -> int:
        """The process id of the server's session, as received when connecting; a pooler sends a number of its own."""
        return self._pgconn.backend_pid

    def close(self) -> None:
        """Disconnect. Safe to repeat."""
        self._connection.close()

    def execute(self, query: str, parameters: Sequence[str] | None = None, *, timeout: float) -> PGresult | None:
        """Run a query and return its result. Without parameters, several may be separated by semicolons.

        Raises:
            QueryRejected: the server answered with an error.
            psycopg.OperationalError: the connection is lost, or no answer came within ``timeout`` seconds.
        """
        if parameters is None:
            self._pgconn.send_query(query.encode())
        else:
            self._pgconn.send_query_params(query.encode(), list(map(str.encode, parameters)))
        results = self._read_results(timeout)
        self._collect()
        for result in results:
            if result.status in _FAILED:
                self._raise_error(result)
        return results[-1] if results else None

    def notify(self, texts: Sequence[tuple[str, str]], timeout: float) -> None:
        """Send texts on their channels, within ``timeout`` seconds.

        One call of ``pg_notify`` per text takes the server half the time of a query over a list. NOTIFY would be faster
        still, but each of its texts would be a statement of its own in pg_stat_statements.
        """
        calls = [_ASYNCHRONOUS_COMMIT]
        parameters: list[str] = []
        for channel, text in texts:
            parameters += (channel, text)
            calls.append(f"pg_notify(${len(parameters) - 1}, ${len(parameters)})")
        self.execute(f"SELECT {', '.join(calls)}", parameters, timeout=timeout)

    def wait(self, timeout: float) -> None:
        """Wait for the server or the waker, at most ``timeout`` seconds; not if notifications have arrived already.

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

    def _read_results(self, timeout: float) -> list[PGresult]:
        deadline = time.monotonic() + timeout
        results: list[PGresult] = []
        while True:
            unsent = self._pgconn.flush()
            poll = select.poll()
            poll.register(self._pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
            # An answer that has arrived is read even if the deadline has passed, since this process may be slow.
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise psycopg.OperationalError(f"the server did not answer within {timeout:g} seconds")
            # Also when the socket is only writable: it reads what has arrived, and does not wait.
            self._pgconn.consume_input()
            self.last_received = time.monotonic()
            while not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is None:
                    return results
                results.append(result)

    def _collect(self) -> None:
        while (notice := self._pgconn.notifies()) is not None:
            # Anybody may send, and a database without an encoding passes on any bytes.
            self.notifications.append((notice.relname.decode(errors="replace"), notice.extra.decode(errors="replace")))

    def _raise_error(self, result: PGresult) -> None:
        message = result.error_message.decode(errors="replace").strip()
        if self._pgconn.status != ConnStatus.OK:
            raise psycopg.OperationalError(message)
        raise QueryRejected(message, (result.error_field(DiagnosticField.SQLSTATE) or b"").decode())


# Nobody needs a notification after a crash, so its commit need not wait for the disk. It is set for each transaction,
# because a pooler may lose a setting of the session.
_ASYNCHRONOUS_COMMIT = "set_config('synchronous_commit', 'off', true)"

# The server is a standby, or became one. A new connection may lead to the primary.
_READ_ONLY_TRANSACTION = "25006"

# Notifications that a frozen process does not read stay in the server's queue, which all its databases share, and those
# of all others with them. So the server ends a session that cannot send for so long. A pooler's sessions are left
# alone.
_READS_WITHIN = (
    "SELECT CASE WHEN pg_backend_pid() = {} AND version() LIKE '%linux%' AND current_setting('tcp_user_timeout') = '0'"
    " THEN set_config('tcp_user_timeout', '{}', false) END"
)

TEST_FAILED = (
    "a notification sent as a test did not arrive; most likely the connection goes through a pooler in transaction"
    " mode. Give a connection string that leads to Postgres itself, as listen_dsn. Until then everybody polls"
)


class PostgresSession(ListenSession):
    """One connection, which listens and sends."""

    def __init__(
        self, connect: Callable[[], ListenConnection], listener: Listener, timeouts: ListenerTimeouts, *, schema: str
    ) -> None:
        """Connect.

        Raises:
            psycopg.OperationalError: the server cannot be reached, or rejects the connection.
        """
        self._connection = connect()
        self._connect = connect
        self._schema = schema
        self.throttle = NotifyThrottle()
        super().__init__(listener, timeouts, f"{schema}_", silent_error=TEST_FAILED)

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()

    def _may_send(self) -> bool:
        return self.throttle.begin(time.monotonic())

    def send(self, timeout: float) -> None:
        keys = sum([1 if keys is None else len(keys) for keys in self._outbox.keys.values()])
        super().send(timeout)
        self.throttle.sent(time.monotonic(), keys)

    def _send(self, texts: Sequence[tuple[str, str]], timeout: float) -> None:
        try:
            self._connection.notify(texts, timeout)
        except psycopg.OperationalError:
            raise
        except Exception as error:
            if isinstance(error, QueryRejected) and error.sqlstate == _READ_ONLY_TRANSACTION:
                raise psycopg.OperationalError(str(error)) from error
            self._listener.on_dropped(str(error))

    def _wait(self) -> None:
        connection, probe = self._connection, self._timeouts.probe
        if time.monotonic() >= connection.last_received + probe:
            connection.execute("SELECT 1", timeout=self._timeouts.answer)
        probe_at = connection.last_received + probe
        send_at = self.throttle.next_at if self._outbox.keys else probe_at
        connection.wait(self._next_deadline(probe_at, send_at) - time.monotonic())

    def _take_received(self) -> list[tuple[str, str]]:
        received, self._connection.notifications = self._connection.notifications, []
        return received

    def _subscribe(self, channels: Sequence[str]) -> None:
        self._connection.execute(";".join(f'LISTEN "{channel}"' for channel in channels), timeout=self._timeouts.answer)

    def _unsubscribe(self, channels: Sequence[str]) -> None:
        self._connection.execute(
            ";".join(f'UNLISTEN "{channel}"' for channel in channels), timeout=self._timeouts.answer
        )

    def _begin_test(self) -> tuple[str, str]:
        channel = f"{self._schema}_test_{secrets.token_hex(8)}"
        bound = _READS_WITHIN.format(self._connection.backend_pid, round(self._timeouts.answer * 1000))
        answer = self._connection.execute(
            f'{bound}; LISTEN "{channel}"; SELECT pg_backend_pid()', timeout=self._timeouts.answer
        )
        if answer is not None and answer.get_value(0, 0) == str(self._connection.backend_pid).encode():
            self._connection.notify([(channel, "")], self._timeouts.answer)
            return channel, ""
        # There is a pooler. In transaction mode a notification that this connection sends would arrive by chance, while
        # the pooler still uses the same session for it; one of another connection does not.
        sender = self._connect()
        try:
            sender.notify([(channel, "")], self._timeouts.answer)
        finally:
            sender.close()
        return channel, ""

    def _fail(self, error: str) -> None:
        super()._fail(error)
        # The session that the pooler holds would listen for ever.
        self._connection.execute("UNLISTEN *", timeout=self._timeouts.answer)


class PostgresNotify(ListeningNotify):
    """Notifications by LISTEN and NOTIFY on the channels ``<schema>_jobs``, ``<schema>_chains`` and
    ``<schema>_leases``.

    While it is open it has one connection and one thread. It checks the connection (by keepalives, and by a query after
    a silence), and connects again when it is lost; then all subscribers are called once. The connection must lead to
    Postgres itself, or through a pooler in session mode: in transaction mode it can send, but not listen. Then it emits
    one :class:`~queuert.observability.events.ListenerLost`, and clients and workers poll.

    Notifications are sent in a transaction of their own, many at a time, so that commits of jobs never wait for
    Postgres' notification lock. After a silence, the store of a client sends that of a start in the round trip of the
    start, if it has the same connection string. In a forked child the adapter is closed and has no subscribers.

    Args:
        dsn: a libpq connection string or URI. The role needs no privileges except to connect.
        schema: the schema of the tables; the names of the channels begin with it.
        password: a function that returns the current password, as for :class:`~queuert.PostgresState`.
        timeouts: timeouts and intervals.

    Raises:
        ConfigurationError: the schema is not a plain identifier, or libpq cannot parse the connection string.

    Example:
        >>> notify = PostgresNotify("postgresql://localhost/app")
        >>> client = Client(PostgresState(dsn), job_types, notify=notify)  # doctest: +SKIP
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        password: Password | None = None,
        timeouts: ListenerTimeouts | None = None,
    ) -> None:
        self._settings = PostgresSettings(dsn=dsn, schema=schema, application_name="queuert notify", password=password)
        self._address = self._settings.address
        self._timeouts = timeouts or ListenerTimeouts()
        super().__init__()

    def __repr__(self) -> str:
        return f"PostgresNotify(schema={self._settings.schema!r})"

    def piggyback(self, topic: Topic, keys: Iterable[str], address: object) -> tuple[str, str] | None:
        """Return the channel and the text of a notification that a store sends behind a write.

        None if the store has another connection string or schema, if the adapter is not connected, or if notifications
        are being collected: then it must be published.
        """
        listener = self._listener
        session = None if listener is None or listener.outbox.keys else listener.session
        if address != self._address or not isinstance(session, PostgresSession):
            return None
        if not session.throttle.begin(time.monotonic()):
            return None
        texts = encode(frozenset(keys))
        return f"{self._settings.schema}_{topic.value}", texts[0] if len(texts) == 1 else WILDCARD

    def _new_listener(self, subscribers: Subscribers) -> Listener:
        return Listener("PostgresNotify", self._timeouts.backoff, subscribers, self._new_session)

    def _new_session(self, listener: Listener) -> PostgresSession:
        return PostgresSession(
            lambda: ListenConnection.connect(self._settings, listener.waker),
            listener,
            self._timeouts,
            schema=self._settings.schema,
        )
