"""The notify adapter on Redis; what it shares with others is in :mod:`queuert.notify.listener`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuert.notify.listener import Listener, ListenerTimeouts, ListeningNotify, Subscribers
from queuert.notify.redis.connection import Wire
from queuert.notify.redis.session import RedisSession
from queuert.notify.redis.settings import connections_of
from queuert.state.redis import keys

if TYPE_CHECKING:
    import redis

_TIMES = ListenerTimeouts(answer=5.0, probe=5.0)


class RedisNotify(ListeningNotify):
    """Notifications by Redis' publish and subscribe, for jobs in Redis or anywhere else, such as in Postgres.

    The channels are ``{queuert:NAMESPACE}:notify:jobs``, ``...:chains`` and ``...:leases``. While it is open it keeps a
    thread and one connection, or two once somebody listens. They are asked for a sign after five seconds of silence
    and made again when they are lost; everybody is then told to look once. A message to itself shows whether
    notifications arrive; where they do not, or the user has no right to them, that is reported once as
    :class:`~queuert.observability.events.ListenerLost`, and sleepers poll.

    It stores nothing. A forked child begins with an adapter that is closed and has no subscribers.

    Args:
        server: a URL (``redis://``, ``rediss://`` or ``unix://``), or a ``redis.Redis`` whose way to the server is
            taken over: the client itself and its connections are not used, and whether it decodes does not matter. Of
            a cluster, the URL of any node will do.
        namespace: whose notifications these are; adapters of different namespaces do not hear each other.
        times: limits and intervals.

    Raises:
        ConfigurationError: the URL or the client makes no sense, or the namespace has a brace.
        InvalidIdentifierError: the namespace is no text that can be stored.

    Example:
        >>> notify = RedisNotify("redis://localhost", namespace="shop")
        >>> client = Client(PostgresState(dsn), job_types, notify=notify)  # doctest: +SKIP
    """

    def __init__(
        self,
        server: str | redis.Redis,
        *,
        namespace: str = keys.DEFAULT_NAMESPACE,
        times: ListenerTimeouts | None = None,
    ) -> None:
        self._times = times or _TIMES
        self._namespace = namespace
        self._prefix = f"{keys.prefix(namespace)}notify:"
        self._new_connection = connections_of(server, self._times.answer)
        super().__init__()

    def __repr__(self) -> str:
        return f"RedisNotify(namespace={self._namespace!r})"

    def _new_listener(self, subscribers: Subscribers) -> Listener:
        return Listener("RedisNotify", self._times.backoff, subscribers, self._new_session)

    def _new_session(self, listener: Listener) -> RedisSession:
        return RedisSession(
            lambda: Wire.connect(self._new_connection, self._times.answer),
            listener,
            self._times,
            prefix=self._prefix,
        )
