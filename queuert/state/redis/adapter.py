"""The state adapter of Redis."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from queuert.passwords import Password
from queuert.state.adapter import Capability
from queuert.state.diagnosis import DEFAULT_THRESHOLDS, Finding, Thresholds
from queuert.state.redis.async_store import AsyncRedisStore
from queuert.state.redis.settings import DEFAULT_NAMESPACE, RedisSettings, key_prefix
from queuert.state.redis.sync_store import RedisStore

if TYPE_CHECKING:
    from queuert.notify.adapter import NotifyAdapter


class RedisState:
    """Stores jobs in lists of a Redis server (6.2 or newer) or Valkey, shared by clients and workers.

    Jobs run at least once, as long as Redis keeps its data: set ``appendonly yes`` and ``maxmemory-policy noeviction``.
    With ``appendfsync everysec`` a crash of the machine loses writes after the last flush; with ``always`` it loses
    none. With ``wait_for_flush=True`` a crash loses no write of a client that has returned. A failover to a replica can
    lose the last acknowledged writes; the server's ``min-replicas-to-write`` bounds that.

    It connects only when a client or worker opens it, and then checks the server's configuration. A server that evicts
    keys, or is too old, is refused with UnsuitableServerError, and a replica with StateUnavailableError. If
    ``wait_for_flush`` is set, so is a server that cannot wait for flushes. A server that writes nothing to disk is
    reported by the event StoreWarningRaised.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        namespace: queues of different namespaces on one server are independent.
        connect_timeout: seconds to wait for a connection.
        answer_timeout: seconds to wait for one answer.
        allow_eviction: accept a server that evicts keys when its memory is full, and so may lose jobs.
        wait_for_flush: let starts and other writes of clients return only when the server has flushed them to its
            append-only file (Redis 7.2 or newer, or Valkey). Each such call uses a connection of its client until
            then, up to about a second with ``everysec``. After three quarters of ``answer_timeout`` it raises
            StateUnavailableError; its write is kept unless the server crashes.
        password: a function that returns the current password, for one that expires, such as a token of AWS or Azure;
            the user is that of the URL. It is called before each connection is made, in any thread, and may block; what
            it raises is the reason of a StateUnavailableError. For ``executor="process"`` it must be picklable: a
            function of a module.

    Raises:
        ConfigurationError: the URL or a setting is not valid.

    Example::

        state = RedisState("redis://cache.internal:6379/0", namespace="shop")
        print(state)
    """

    capabilities = frozenset({Capability.MULTI_PROCESS, Capability.EVENTS})

    def __init__(
        self,
        url: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        connect_timeout: float = 10.0,
        answer_timeout: float = 30.0,
        allow_eviction: bool = False,
        wait_for_flush: bool = False,
        password: Password | None = None,
    ) -> None:
        self._namespace = namespace
        self._settings = RedisSettings(
            url, key_prefix(namespace), connect_timeout, answer_timeout, allow_eviction, wait_for_flush, password
        )
        self._settings.check()

    @property
    def namespace(self) -> str:
        """The name that separates these queues from others on the server."""
        return self._namespace

    def __repr__(self) -> str:
        return f"RedisState(namespace={self._namespace!r})"

    def sync_store(self, *, max_connections: int = 4, answer_timeout: float | None = None) -> RedisStore:
        """Return a new, unopened sync store."""
        longest = self._settings.answer_timeout
        timeout = min(longest, answer_timeout or longest)
        connect = min(self._settings.connect_timeout, timeout)
        settings = replace(self._settings, connect_timeout=connect, answer_timeout=timeout)
        return RedisStore(settings, max_connections)

    def async_store(self, *, max_connections: int = 4) -> AsyncRedisStore:
        """Return a new, unopened async store."""
        return AsyncRedisStore(self._settings, max_connections)

    def diagnose(self, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> list[Finding]:
        """Check the server and what is in it, as ``queuert doctor`` does. It changes nothing.

        Raises:
            StateUnavailableError: the server cannot be reached.
        """
        from queuert.state.redis.doctor import diagnose

        return diagnose(self._settings, thresholds)

    def default_notify(self) -> NotifyAdapter:
        """Return a notify adapter that publishes and subscribes on the same server."""
        from queuert.notify.redis import RedisNotify

        return RedisNotify(self._settings.url, namespace=self._namespace, password=self._settings.password)
