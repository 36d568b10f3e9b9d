"""Makes connections to the server of a URL, or of a user's client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import redis
from redis.connection import AbstractConnection

from queuert.errors import ConfigurationError
from queuert.passwords import Password
from queuert.state.redis.settings import Credentials

NewConnection: TypeAlias = Callable[[], AbstractConnection]
"""Makes a connection object that is not connected yet."""

# The options for address, credentials and TLS are copied. Others, of this version of redis-py or a later one, would
# decode answers, repeat commands, or belong to the client's own pool and cache.
_COPIED_OPTIONS = frozenset(
    {
        *("host", "port", "path", "socket_type", "socket_keepalive", "socket_keepalive_options", "socket_read_size"),
        *("username", "password", "credential_provider", "redis_connect_func"),
        *("lib_name", "lib_version", "driver_info"),
    }
)


def connections_of(server: str | redis.Redis, timeout: float, password: Password | None = None) -> NewConnection:
    """Return a function that makes connections to the server of a URL or a client. It does not use the client's own.

    Notifications do not depend on the numbered database, so none is selected.

    Raises:
        ConfigurationError: the URL is not valid, or the client is not a ``redis.Redis``. The message repeats neither,
            since they may contain a password.
    """
    pool = _pool(server)
    options = {name: value for name, value in pool.connection_kwargs.items() if _is_copied(name)}
    if password is not None:
        options["credential_provider"] = Credentials(options.pop("username", None), password)
        options.pop("password", None)
    overrides: dict[str, Any] = {"socket_timeout": timeout, "protocol": 2}
    if issubclass(pool.connection_class, redis.Connection):  # The class for Unix sockets may not have it.
        overrides["socket_connect_timeout"] = timeout

    def new_connection() -> AbstractConnection:
        connection: AbstractConnection = pool.connection_class(**options, **overrides)
        return connection

    try:
        # With all options, as redis-py itself would connect: an option that it does not know is an error.
        pool.connection_class(**{name: value for name, value in pool.connection_kwargs.items() if name != "timeout"})
        new_connection()
    # Connections do not have such an option, or it has a wrong value. Nothing is connected yet.
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


def _is_copied(name: str) -> bool:
    return name in _COPIED_OPTIONS or name.startswith("ssl_")
