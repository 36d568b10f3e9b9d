"""How the server is reached: connections of our own, made as a URL or a user's client says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import redis
from redis.connection import AbstractConnection

from queuert.errors import ConfigurationError

NewConnection: TypeAlias = Callable[[], AbstractConnection]
"""Makes a connection that is not connected yet."""

# What says where the server is, and as whom and how safely to speak to it, is taken over. Whatever else this version of
# redis-py or the next one has would decode answers, repeat commands, or belong to the client's own pool and cache.
_TAKEN = frozenset(
    {
        *("host", "port", "path", "socket_type", "socket_keepalive", "socket_keepalive_options", "socket_read_size"),
        *("username", "password", "credential_provider", "redis_connect_func"),
        *("lib_name", "lib_version", "driver_info"),
    }
)


def connections_of(server: str | redis.Redis, timeout: float) -> NewConnection:
    """How to make connections to the server of a URL, or of a client, whose own connections are left alone.

    Notifications do not depend on the numbered database, so none is selected.

    Raises:
        ConfigurationError: the URL is not valid, or it is no client of redis-py's that blocks. Neither is repeated
            in the message, since it may hold a password.
    """
    pool = _pool(server)
    wanted = {name: value for name, value in pool.connection_kwargs.items() if _is_taken(name)}
    ours: dict[str, Any] = {"socket_timeout": timeout, "protocol": 2}
    if issubclass(pool.connection_class, redis.Connection):  # The one for Unix sockets need not know of it.
        ours["socket_connect_timeout"] = timeout

    def new_connection() -> AbstractConnection:
        connection: AbstractConnection = pool.connection_class(**wanted, **ours)
        return connection

    try:
        # As redis-py itself would connect, so that an option that it does not know is refused and not left out.
        pool.connection_class(**{name: value for name, value in pool.connection_kwargs.items() if name != "timeout"})
        new_connection()
    # An option that connections do not have, or not with this value. Nothing is connected yet.
    except (TypeError, ValueError, redis.RedisError):
        pass
    else:
        return new_connection
    raise ConfigurationError("redis-py does not understand an option of the URL, or of the client: see its Connection")


def _pool(server: object) -> redis.ConnectionPool:
    if isinstance(server, redis.Redis):
        return server.connection_pool
    if not isinstance(server, str):
        raise ConfigurationError(
            f"notifications by Redis need a URL or a redis.Redis, not {type(server).__module__}.{type(server).__name__}"
            " (of a cluster, the URL of any node will do)"
        )
    try:
        return redis.ConnectionPool.from_url(server)
    except ValueError:
        pass
    raise ConfigurationError("redis-py does not understand the URL: use redis://USER:PASSWORD@HOST:PORT/0")


def _is_taken(name: str) -> bool:
    return name in _TAKEN or name.startswith("ssl_")
