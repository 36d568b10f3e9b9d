"""The notify adapter on Postgres; what it shares with others is in :mod:`queuert.notify.threaded_adapter`."""

from __future__ import annotations

from collections.abc import Iterable

from queuert.migrations import DEFAULT_SCHEMA
from queuert.notify.adapter import PiggybackNotification, Topic
from queuert.notify.listener_thread import Listener
from queuert.notify.postgres.connection import Wire
from queuert.notify.postgres.piggyback import PostgresPiggybackNotification
from queuert.notify.postgres.session import Session
from queuert.notify.postgres.throttle import NotifyThrottle
from queuert.notify.subscribers import Subscribers
from queuert.notify.threaded_adapter import ListeningNotify
from queuert.notify.timeouts import ListenerTimeouts
from queuert.state.postgres.settings import PostgresSettings


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

    def piggyback_notification(self, topic: Topic, keys: Iterable[str]) -> PiggybackNotification:
        """A notification that a store may send along with a write to the same database and schema."""
        return PostgresPiggybackNotification(
            self._settings.place, topic, frozenset(keys), self._gathering, self._is_silent
        )

    def _begin(self) -> None:
        super()._begin()
        self._gathering = NotifyThrottle()

    def _is_silent(self) -> bool:
        listener = self._listener
        return listener is not None and not listener.pending

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
