"""How a server is reached, and how patiently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from queuert.errors import ConfigurationError

# Of what a URL may say these are ours to decide: they would decode answers, repeat commands, or replace our timeout.
_NOT_TAKEN = frozenset(
    {
        *("decode_responses", "encoding", "encoding_errors", "protocol", "legacy_responses", "cache", "cache_config"),
        *("socket_timeout", "socket_connect_timeout", "retry", "retry_on_error", "retry_on_timeout"),
        *("max_connections", "timeout", "parser_class", "command_packer", "event_dispatcher", "himport_registry"),
    }
)
_NOT_TAKEN_PREFIXES = ("maint", "orig_", "oss_cluster")


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """An address and the timeout with it, in seconds."""

    url: str
    prefix: str
    connect_timeout: float
    answer_timeout: float
    allow_eviction: bool = False
    wait_for_flush: bool = False

    def __post_init__(self) -> None:
        for name in ("connect_timeout", "answer_timeout"):
            value = getattr(self, name)
            if not 0 < value <= 3600:
                raise ConfigurationError(f"{name} is {value!r}: above 0, at most an hour, in seconds")

    @property
    def flush_timeout(self) -> float:
        """How long the server waits for a flush: it has to answer before the timeout with it ends."""
        return self.answer_timeout * 0.75

    def check(self) -> None:
        """Refuse an address that makes no sense. Nothing is connected; the message repeats no password.

        Raises:
            ConfigurationError: redis-py does not understand it.
        """
        if not self.url.startswith(("redis://", "rediss://", "unix://")):
            raise ConfigurationError("the address of Redis begins with redis://, rediss:// or unix://")
        try:
            pool = self.pool(redis.BlockingConnectionPool, redis.Connection, Retry, 1)
            pool.connection_class(**pool.connection_kwargs)
        except (TypeError, ValueError, redis.RedisError):
            raise ConfigurationError("redis-py does not understand the address of Redis, or an option of it") from None

    def pool(self, kind: Any, tcp: type, retry: Any, connections: int) -> Any:
        """A pool of this kind of redis-py's.

        Nothing is repeated by the driver: a claim whose answer was lost must be released, not made twice.
        """
        parsed = kind.from_url(self.url)
        wanted = {name: value for name, value in parsed.connection_kwargs.items() if _is_taken(name)}
        ours: dict[str, Any] = {"socket_timeout": self.answer_timeout, "retry": retry(NoBackoff(), 0)}
        if issubclass(parsed.connection_class, tcp):  # The one for Unix sockets knows nothing of these.
            ours |= {"socket_connect_timeout": self.connect_timeout, "socket_keepalive": True}
        return kind(
            connection_class=parsed.connection_class,
            max_connections=connections,
            timeout=self.answer_timeout,
            **wanted,
            **ours,
        )


def _is_taken(name: str) -> bool:
    return name not in _NOT_TAKEN and not name.startswith(_NOT_TAKEN_PREFIXES)
