"""Redis as the place where jobs live."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from queuert.state.adapter import Capability
from queuert.state.redis import keys
from queuert.state.redis.async_store import AsyncRedisStore
from queuert.state.redis.settings import RedisSettings
from queuert.state.redis.sync_store import RedisStore

if TYPE_CHECKING:
    from queuert.notify.adapter import NotifyAdapter


class RedisState:
    """Jobs in lists of a Redis server (6.2 or newer) or Valkey, shared by clients and workers.

    At least once, for as long as Redis keeps its data: switch on ``appendonly`` and keep ``maxmemory-policy
    noeviction``. With ``appendfsync everysec`` a crash loses what was acknowledged after the last flush; a kill of the
    server alone loses nothing with ``wait_for_flush=True``, and no crash does with ``always``. A failover to a replica
    can lose what was acknowledged in its last moments; the server's ``min-replicas-to-write`` bounds that.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        namespace: queues of different namespaces share a server and nothing else.
        connect_timeout: seconds to wait for a connection.
        answer_timeout: seconds to wait for any one answer.
        allow_eviction: use a server that drops keys when its memory is full, and may lose jobs then.
        wait_for_flush: let starts, and whatever else a client changes, return when the server has written it to its
            append-only file (Redis 7.2 or newer, or Valkey). Each such call holds a connection of its client for as
            long as that takes, up to about a second with ``everysec``. After three quarters of ``answer_timeout`` it
            raises StateUnavailableError: what it did stands, unless the server crashes.

    Raises:
        ConfigurationError: the address or a setting makes no sense.

    Nothing is connected until a client or worker opens it. That looks at how the server is set: one that drops keys, is
    a replica or too old is refused (ConfigurationError, StateUnavailableError, StateError), and so is one that cannot
    wait for flushes, if it has to; one that keeps nothing on disk is told as an event, StoreWarningRaised.

    Example::

        state = RedisState("redis://cache.internal:6379/0", namespace="shop")
        print(state)
    """

    capabilities = frozenset({Capability.MULTI_PROCESS})
    keeps_in_memory = True
    """What is never deleted fills the memory: workers warn of types without a retention."""

    def __init__(
        self,
        url: str,
        *,
        namespace: str = keys.DEFAULT_NAMESPACE,
        connect_timeout: float = 10.0,
        answer_timeout: float = 30.0,
        allow_eviction: bool = False,
        wait_for_flush: bool = False,
    ) -> None:
        self._namespace = namespace
        self._settings = RedisSettings(
            url, keys.prefix(namespace), connect_timeout, answer_timeout, allow_eviction, wait_for_flush
        )
        self._settings.check()

    @property
    def namespace(self) -> str:
        """What keeps these queues apart from others of the server."""
        return self._namespace

    def __repr__(self) -> str:
        return f"RedisState(namespace={self._namespace!r})"

    def sync_store(self, *, max_connections: int = 4, answer_timeout: float | None = None) -> RedisStore:
        """A new, unopened synchronous store."""
        longest = self._settings.answer_timeout
        timeout = min(longest, answer_timeout or longest)
        connect = min(self._settings.connect_timeout, timeout)
        settings = replace(self._settings, connect_timeout=connect, answer_timeout=timeout)
        return RedisStore(settings, max_connections)

    def async_store(self, *, max_connections: int = 4) -> AsyncRedisStore:
        """A new, unopened asynchronous store."""
        return AsyncRedisStore(self._settings, max_connections)

    def default_notify(self) -> NotifyAdapter:
        """Publish and subscribe on the same server."""
        from queuert.notify.redis import RedisNotify

        return RedisNotify(self._settings.url, namespace=self._namespace)
