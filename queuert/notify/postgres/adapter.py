"""The notify adapter on Postgres: opening, closing, forking; the work is the listener's."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from queuert.migrations import DEFAULT_SCHEMA
from queuert.notify.adapter import HintCallback, Subscription, Topic
from queuert.notify.forks import begin_anew_in_children
from queuert.notify.postgres.listener import Listener
from queuert.notify.postgres.session import ListenerTimes
from queuert.notify.subscribers import Subscribers
from queuert.observability.adapter import Observers
from queuert.state.postgres.settings import PostgresSettings

# A child's copies of its parent's listeners. Kept, since collecting one could say good-bye on the parent's socket.
_inherited: list[Listener] = []


class PostgresNotify:
    """Hints by LISTEN and NOTIFY on the channels ``<schema>_jobs``, ``<schema>_chains`` and ``<schema>_leases``.

    While it is open it keeps one connection and one thread. The connection is watched (keepalives, and a probe after
    a silence) and made again when it is lost; everybody is then told to look once. It needs a way to Postgres itself,
    or through a pooler in session mode: in transaction mode sending works, but listening cannot. That is noticed and
    reported once as :class:`~queuert.observability.events.ListenerLost`, and sleepers poll.

    Hints are sent in a transaction of their own, many at a time, so that commits of jobs never queue for Postgres'
    notification lock. A forked child begins with an adapter that is closed and has no subscribers.

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

    def __init__(self, dsn: str, *, schema: str = DEFAULT_SCHEMA, times: ListenerTimes | None = None) -> None:
        self._settings = PostgresSettings(dsn=dsn, schema=schema, application_name="queuert notify")
        self._times = times or ListenerTimes()
        self._listener: Listener | None = None
        self._begin()
        begin_anew_in_children(self)

    def _begin(self) -> None:
        self._opened = 0
        # Re-entrant, because the garbage collector may close a client, and so this, anywhere.
        self._lock = threading.RLock()
        self._subscribers = Subscribers(self._look_again)

    def begin_anew(self) -> None:
        """Forget everything, as a forked child must; not for use by others."""
        if self._listener is not None:
            _inherited.append(self._listener)
            self._listener = None
        self._begin()

    def __repr__(self) -> str:
        return f"PostgresNotify(schema={self._settings.schema!r})"

    def open(self, observers: Observers) -> None:
        """Begin to connect, in the background. Counted: the last ``close`` ends it.

        It does not wait and does not fail: a database that cannot be reached is an event, told to all observers
        given so far, and is tried again.
        """
        with self._lock:
            self._opened += 1
            if self._listener is None:
                self._listener = Listener(self._settings, self._times, self._subscribers)
                self._listener.tell(observers)
                self._listener.start()
            else:
                self._listener.tell(observers)

    def close(self) -> None:
        """Send what is pending and disconnect, within a second. Too many closes do nothing; ``open`` begins again."""
        with self._lock:
            self._opened = max(0, self._opened - 1)
            if self._opened:
                return
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()

    def publish(self, topic: Topic, keys: Iterable[str]) -> None:
        """Send a hint at once, or together with others as soon as the connection is free, each key once.

        Never blocks, never raises. While the connection is lost a bounded number of hints is kept; more than that
        become one hint to look at everything. Does nothing while the adapter is not open.
        """
        listener = self._listener
        if listener is not None:
            listener.publish(topic, keys)

    def subscribe(self, topic: Topic, callback: HintCallback) -> Subscription:
        """Call ``callback`` with every hint of the topic, from the adapter's thread: be quick.

        It is called once with ``keys=None`` when listening has begun, and after each loss of the connection: look
        then for what was missed. What it raises goes to the log ``queuert.notify`` and disturbs nobody. Subscribing
        is possible before ``open``, and outlasts ``close``.
        """
        return self._subscribers.add(topic, callback)

    @property
    def healthy(self) -> bool:
        """Whether hints arrive at present. Where they do not, sleepers poll more often."""
        listener = self._listener
        return listener is not None and listener.healthy

    def _look_again(self) -> None:
        listener = self._listener
        if listener is not None:
            listener.look_again()
