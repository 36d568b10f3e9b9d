"""The notify adapter on Redis. The common parts of listeners are in :mod:`queuert.notify.listener`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuert.notify.listener import Listener, ListenerTimeouts, ListeningNotify, Subscribers
from queuert.notify.redis.connection import ListenConnection
from queuert.notify.redis.session import RedisSession
from queuert.notify.redis.settings import connections_of
from queuert.passwords import Password, checked_password
from queuert.state.redis.settings import DEFAULT_NAMESPACE, key_prefix

if TYPE_CHECKING:
    import redis

_TIMEOUTS = ListenerTimeouts(answer=5.0, probe=5.0)


class RedisNotify(ListeningNotify):
    """Notifications by Redis' publish and subscribe, for jobs in Redis or anywhere else, such as in Postgres.

    The channels are ``{queuert:NAMESPACE}:notify:jobs``, ``...:chains`` and ``...:leases``. While it is open it has a
    thread and one connection, and a second one while there are subscribers. It pings the server after five seconds of
    silence, and connects again when a connection is lost; then all subscribers are called once. A message that it sends
    to itself shows whether notifications arrive. If they do not, or the user has no right to them, it emits one
    :class:`~queuert.observability.events.ListenerLost`, and clients and workers poll.

    It stores nothing. In a forked child the adapter is closed and has no subscribers.

    Args:
        server: a URL (``redis://``, ``rediss://`` or ``unix://``), or a ``redis.Redis``, of which address, credentials
            and TLS settings are used, but neither the client itself nor its connections. For a cluster, the URL of any
            node.
        namespace: the namespace of the notifications; adapters of different namespaces do not notify each other.
        password: a function that returns the current password, as for ``RedisState``; a ``redis.Redis`` has a
            ``credential_provider`` of its own for that.
        timeouts: timeouts and intervals.

    Raises:
        ConfigurationError: the URL or the client is not valid, or the namespace has a brace.
        InvalidIdentifierError: the namespace cannot be stored.

    Example:
        >>> notify = RedisNotify("redis://localhost", namespace="shop")
        >>> client = Client(PostgresState(dsn), job_types, notify=notify)  # doctest: +SKIP
    """

    def __init__(
        self,
        server: str | redis.Redis,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        password: Password | None = None,
        timeouts: ListenerTimeouts | None = None,
    ) -> None:
        self._timeouts = timeouts or _TIMEOUTS
        self._namespace = namespace
        self._prefix = f"{key_prefix(namespace)}notify:"
        self._new_connection = connections_of(server, self._timeouts.answer, checked_password(password))
        super().__init__()

    def __repr__(self) -> str:
        return f"RedisNotify(namespace={self._namespace!r})"

    def _new_listener(self, subscribers: Subscribers) -> Listener:
        return Listener("RedisNotify", self._timeouts.backoff, subscribers, self._new_session)

    def _new_session(self, listener: Listener) -> RedisSession:
        return RedisSession(
            lambda: ListenConnection.connect(self._new_connection, self._timeouts.answer),
            listener,
            self._timeouts,
            prefix=self._prefix,
        )
