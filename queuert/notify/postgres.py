"""Notifications by LISTEN and NOTIFY.

One thread with one connection both listens and sends. It waits on the connection's socket and on a waker, so it costs
nothing while nothing happens. Neither publishers nor subscribers ever wait for the database.

The path of a notification: ``PostgresNotify.publish`` puts it into the listener's outbox and wakes its thread;
``Session.turn`` sends what the outbox holds as often as ``NotifyThrottle`` allows, and dispatches what arrived to the
subscribers. ``Wire`` is the connection.
"""

from __future__ import annotations

import secrets
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from queuert.migrations import DEFAULT_SCHEMA
from queuert.notify.adapter import Notification, Topic
from queuert.notify.encoding import decode, encode
from queuert.notify.listener import Batch, Listener, ListenerTimeouts, ListeningNotify, Outbox, Subscribers, Waker
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
    """Counts no notifications: tells from when on the next may go. For all threads."""

    def __init__(self) -> None:
        self._seconds = SHORTEST
        self._many = False
        self._lock = threading.Lock()
        self.next_at = 0.0
        """The next sending, at the earliest (monotonic)."""

    def depart(self, now: float) -> bool:
        """Whether some may be sent now; if so they count. If they had waited for it, others will for longer."""
        with self._lock:
            if now < self.next_at:
                return False
            waited = now < self.next_at + self._seconds
            self._seconds = min(2 * self._seconds, LONGEST_OF_MANY if self._many else LONGEST) if waited else SHORTEST
            self.next_at = now + self._seconds
            return True

    def arrive(self, now: float, keys: int = 1) -> None:
        """They were sent, and told of so many keys."""
        with self._lock:
            self._many = keys >= MANY
            self.next_at = max(self.next_at, now + self._seconds)


def channel_of(schema: str, topic: Topic) -> str:
    """The Postgres channel that carries the notifications of a topic."""
    return f"{schema}_{topic.value}"


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
        poll.register(self._waker.descriptor, select.POLLIN)
        ready = dict(poll.poll(0 if self._notifications else max(0.0, timeout) * 1000))
        if self._waker.descriptor in ready:
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


# Nobody needs a notification after a crash, so its commit need not wait for the disk. Set for this one transaction,
# because a setting of the session would get lost in a pooler.
_QUICKLY = "set_config('synchronous_commit', 'off', true)"

# Read-only transaction: this is a standby, or became one. Another connection may lead to the primary.
_READ_ONLY = "25006"

DEAF = (
    "a notification sent as a test did not arrive; most likely the connection goes through a pooler in transaction"
    " mode. Give a connection string that leads to Postgres itself, as listen_dsn. Until then everybody polls"
)


class Owner(Protocol):
    """Who is told how the session fares."""

    def works(self) -> None:
        """Notifications arrive, or nobody wants any."""

    def on_silent(self, error: str, retry_in: float) -> None:
        """The connection stands, but notifications do not arrive on it."""

    def dropped(self, error: str) -> None:
        """Notifications could not be sent."""


@dataclass
class _Test:
    """A notification to oneself that is under way."""

    channel: str
    deadline: float


class Session:
    """One connection's state. All methods belong to the listener's thread, except ``healthy``."""

    def __init__(
        self,
        connect: Callable[[], Wire],
        *,
        schema: str,
        subscribers: Subscribers,
        pending: Outbox,
        gathering: NotifyThrottle,
        times: ListenerTimeouts,
        owner: Owner,
    ) -> None:
        """Connect.

        Raises:
            psycopg.OperationalError: that did not work.
        """
        self._wire = connect()
        self._connect = connect
        self._schema = schema
        self._subscribers = subscribers
        self._pending = pending
        self._gathering = gathering
        self._times = times
        self._owner = owner
        self._topics = {channel_of(schema, topic): topic for topic in Topic}
        self._listening: frozenset[Topic] = frozenset()
        self._passed = False
        self._test: _Test | None = None
        self._retest_at = 0.0
        self._tidy_at: float | None = None
        self.began_at = time.monotonic()

    @property
    def healthy(self) -> bool:
        """Whether notifications arrive, as far as anybody wants them."""
        return self._passed or not self._subscribers.topics()

    def close(self) -> None:
        """Disconnect."""
        self._wire.close()

    def turn(self) -> None:
        """Do all there is to do, then wait for more.

        Raises:
            psycopg.OperationalError: the connection is lost.
            QueryRejected: the server does not let us listen.
        """
        self._keep_listening()
        if self.healthy:
            self._owner.works()
        if self._pending and self._gathering.depart(time.monotonic()):
            self.send(self._times.answer)
        if time.monotonic() >= self._wire.last_received + self._times.probe:
            self._wire.ask("SELECT 1", limit=self._times.answer)
        self._wire.wait(self._next_deadline() - time.monotonic())
        self._hear()

    def send(self, limit: float) -> None:
        """Send what is pending, within ``limit`` seconds. What a lost connection leaves unsent is pending again.

        Raises:
            psycopg.OperationalError: the connection is lost.
        """
        batch = self._pending.take()
        if not batch:
            return
        try:
            self._send(batch, limit)
        except psycopg.OperationalError:
            self._pending.put_back(batch)
            raise
        except Exception as error:
            self._owner.dropped(str(error))
        self._gathering.arrive(time.monotonic(), sum(1 if keys is None else len(keys) for keys in batch.values()))

    def _send(self, batch: Batch, limit: float) -> None:
        texts = [(channel_of(self._schema, topic), text) for topic, keys in batch.items() for text in encode(keys)]
        try:
            _notify(self._wire, texts, limit)
        except QueryRejected as refusal:
            if refusal.sqlstate == _READ_ONLY:
                raise psycopg.OperationalError(str(refusal)) from refusal
            raise

    # --- listening ----------------------------------------------------------------------------------------------------

    def _keep_listening(self) -> None:
        wanted = self._subscribers.topics()
        if wanted and not self._passed:
            self._advance_self_test()
        if self._passed and (wanted != self._listening or self._tidy_at is not None):
            self._listen(wanted - self._listening)
            self._unlisten_idle(self._listening - wanted)

    def _listen(self, topics: frozenset[Topic]) -> None:
        if not topics:
            return
        self._command("LISTEN", topics)
        self._listening |= topics
        for topic in topics:
            # What happened between their subscription and this moment was not heard.
            self._subscribers.dispatch(Notification(topic, None))

    def _unlisten_idle(self, topics: frozenset[Topic]) -> None:
        now = time.monotonic()
        if not topics:
            self._tidy_at = None
        elif self._tidy_at is None:
            self._tidy_at = now + self._times.linger
        elif now >= self._tidy_at:
            self._command("UNLISTEN", topics)
            self._listening -= topics
            self._tidy_at = None

    def _command(self, verb: str, topics: frozenset[Topic]) -> None:
        channels = sorted(channel_of(self._schema, topic) for topic in topics)
        self._wire.ask(";".join(f'{verb} "{channel}"' for channel in channels), limit=self._times.answer)

    def _next_deadline(self) -> float:
        deadlines = [self._wire.last_received + self._times.probe]
        if self._tidy_at is not None:
            deadlines.append(self._tidy_at)
        if self._pending:
            deadlines.append(self._gathering.next_at)
        if not self.healthy:
            deadlines.append(self._retest_at if self._test is None else self._test.deadline)
        return min(deadlines)

    def _hear(self) -> None:
        """Tell the subscribers what arrived: one notification a topic, however many notifications there were."""
        heard: dict[Topic, frozenset[str] | None] = {}
        for channel, text in self._wire.take_notifications():
            topic = self._topics.get(channel)
            if topic is not None:
                keys, before = decode(text), heard.get(topic, frozenset())
                heard[topic] = None if keys is None or before is None else before | keys
            elif self._test is not None and channel == self._test.channel:
                self._pass()
        for topic, keys in heard.items():
            self._subscribers.dispatch(Notification(topic, keys))

    # --- the self-test ------------------------------------------------------------------------------------------------

    def _advance_self_test(self) -> None:
        now = time.monotonic()
        if self._test is None and now >= self._retest_at:
            self._begin_test()
            self._hear()  # On a direct connection the notification came with the answer.
        elif self._test is not None and now >= self._test.deadline:
            self._fail()

    def _begin_test(self) -> None:
        channel = f"{self._schema}_test_{secrets.token_hex(8)}"
        answer = self._wire.ask(f'LISTEN "{channel}"; SELECT pg_backend_pid()', limit=self._times.answer)
        if answer == [[str(self._wire.backend_pid)]]:
            _notify(self._wire, [(channel, "")], self._times.answer)
        else:
            # There is a pooler. In transaction mode a notification to oneself would pass by chance, since it comes
            # while the pooler still lends us its sender; one from elsewhere comes when it no longer does.
            sender = self._connect()
            try:
                _notify(sender, [(channel, "")], self._times.answer)
            finally:
                sender.close()
        self._test = _Test(channel, time.monotonic() + self._times.self_test)

    def _pass(self) -> None:
        if self._test is not None:
            self._passed = True
            self._wire.ask(f'UNLISTEN "{self._test.channel}"', limit=self._times.answer)
            self._test = None

    def _fail(self) -> None:
        self._test = None
        self._retest_at = time.monotonic() + self._times.retest
        self._owner.on_silent(DEAF, self._times.retest)
        # The pooler's connection should not go on listening for nobody.
        self._wire.ask("UNLISTEN *", limit=self._times.answer)


def _notify(wire: Wire, texts: Sequence[tuple[str, str]], limit: float) -> None:
    """Send texts on their channels.

    Calls in a row take the server half the time of a query over a list. NOTIFY would be quicker still, but to
    pg_stat_statements, which tells statements apart, each of its texts would be a statement of its own.
    """
    calls = (f"pg_notify(${number}, ${number + 1})" for number in range(1, 2 * len(texts), 2))
    wire.ask(f"SELECT {', '.join((_QUICKLY, *calls))}", [part for pair in texts for part in pair], limit=limit)


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

    def _begin(self) -> None:
        super()._begin()
        self._gathering = NotifyThrottle()

    def _new_listener(self, subscribers: Subscribers) -> Listener:
        return Listener("PostgresNotify", self._times.backoff, subscribers, self._new_session)

    def _new_session(self, listener: Listener) -> Session:
        return Session(
            lambda: Wire.connect(self._settings, listener.waker),
            schema=self._settings.schema,
            subscribers=listener.subscribers,
            pending=listener.pending,
            gathering=self._gathering,
            times=self._times,
            owner=listener,
        )
