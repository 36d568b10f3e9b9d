"""The URL of a Redis server, the timeouts, the keys of a namespace, and warnings about the TLS settings."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry

from queuert.errors import ConfigurationError, QueuertError
from queuert.passwords import Password, checked_password, current_password, current_password_async
from queuert.state.adapter import tls_warnings
from queuert.state.types import StoreWarning
from queuert.texts import check_text

DEFAULT_NAMESPACE = "default"


def key_prefix(namespace: str) -> str:
    """Return the prefix of all keys of a namespace. Its braces are a hash tag, so all keys share a cluster slot.

    Ids follow the prefix, so braces in them do not change the slot: only the first pair of braces counts.

    Raises:
        ConfigurationError: the namespace contains a brace, which would end the tag.
        InvalidIdentifierError: the namespace is empty, or cannot be stored.
    """
    check_text(namespace, what="namespace")
    if not namespace or {"{", "}"}.intersection(namespace):
        raise ConfigurationError(f"namespace must be a text without braces, got {namespace!r}")
    return f"{{queuert:{namespace}}}:"


# The options of a URL that are used. All others of redis-py, now or later, are ignored: they would decode answers,
# repeat commands, speak another protocol, or replace the timeouts.
_TAKEN = frozenset(
    {
        *("host", "port", "path", "db", "username", "password", "credential_provider"),
        *("socket_type", "socket_keepalive", "socket_keepalive_options", "socket_read_size", "health_check_interval"),
        *("redis_connect_func", "client_name", "lib_name", "lib_version", "driver_info"),
    }
)


class Credentials(CredentialProvider):
    """Lets redis-py ask a function for the password of each connection."""

    def __init__(self, username: str | None, password: Password) -> None:
        self._username = username
        self._password = password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the user of the URL, if there is one, and the current password.

        Raises:
            redis.ConnectionError: there is none. After any other exception redis-py would keep the connection, and use
                it although it has not logged in.
        """
        with _as_connection_error():
            return self._with(current_password(self._password))

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """Return the same, without blocking the event loop."""
        with _as_connection_error():
            return self._with(await current_password_async(self._password))

    def _with(self, current: str) -> tuple[str] | tuple[str, str]:
        return (current,) if self._username is None else (self._username, current)


@contextmanager
def _as_connection_error() -> Iterator[None]:
    try:
        yield
    except QueuertError as error:
        raise redis.ConnectionError(str(error)) from error


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """A URL and the settings that belong to it; timeouts are in seconds."""

    url: str
    prefix: str
    connect_timeout: float
    answer_timeout: float
    allow_eviction: bool = False
    wait_for_flush: bool = False
    password: Password | None = None

    def __post_init__(self) -> None:
        checked_password(self.password)
        for name in ("connect_timeout", "answer_timeout"):
            value = getattr(self, name)
            if not 0 < value <= 3600:
                raise ConfigurationError(f"{name} must be above 0 and at most 3,600 seconds, got {value!r}")

    @property
    def flush_timeout(self) -> float:
        """The seconds that the server waits for a flush, so that it answers before ``answer_timeout``."""
        return self.answer_timeout * 0.75

    def check(self) -> None:
        """Check the URL without connecting. The message does not repeat it, as it may contain a password.

        Raises:
            ConfigurationError: redis-py cannot parse it.
        """
        if not self.url.startswith(("redis://", "rediss://", "unix://")):
            raise ConfigurationError("the url of Redis must begin with redis://, rediss:// or unix://")
        try:
            # Parsed as redis-py does when it connects, so that an unknown option is refused instead of ignored.
            theirs = redis.BlockingConnectionPool.from_url(self.url)
            theirs.connection_class(**theirs.connection_kwargs)
            ours = self.pool(redis.BlockingConnectionPool, redis.Connection, Retry, 1)
            ours.connection_class(**ours.connection_kwargs)
        except (TypeError, ValueError, redis.RedisError):
            raise ConfigurationError(
                "redis-py cannot parse the url of Redis or an option of it: write redis://user@host:6379/0"
            ) from None

    def pool(self, kind: Any, tcp: type, retry: Any, connections: int) -> Any:
        """Return a pool of this class of redis-py.

        The driver must not repeat commands: a claim whose answer was lost must be released, not made twice.
        """
        parsed = kind.from_url(self.url)
        wanted = {name: value for name, value in parsed.connection_kwargs.items() if _is_taken(name)}
        # With version 3 of the protocol redis-py's asyncio pool no longer looks whether the server has closed a
        # connection that was idle (it may get messages of maintenance at any time): the next call would fail.
        if self.password is not None:
            wanted["credential_provider"] = Credentials(wanted.pop("username", None), self.password)
            wanted.pop("password", None)
        ours: dict[str, Any] = {"protocol": 2, "socket_timeout": self.answer_timeout, "retry": retry(NoBackoff(), 0)}
        if issubclass(parsed.connection_class, tcp):  # The class for Unix sockets does not have these options.
            wanted.setdefault("socket_keepalive", True)
            ours["socket_connect_timeout"] = self.connect_timeout
        return kind(
            connection_class=parsed.connection_class,
            max_connections=connections,
            timeout=self.answer_timeout,
            **wanted,
            **ours,
        )


def _is_taken(name: str) -> bool:
    return name in _TAKEN or name.startswith("ssl_")


def address_warnings(settings: RedisSettings) -> tuple[StoreWarning, ...]:
    """Return the warnings for connections with these settings."""
    pool = settings.pool(redis.BlockingConnectionPool, redis.Connection, Retry, 1)
    connection = pool.connection_class(**pool.connection_kwargs)
    encrypted = isinstance(connection, redis.SSLConnection)
    verified = encrypted and connection.cert_reqs == ssl.CERT_REQUIRED and bool(connection.check_hostname)
    return tls_warnings(
        str(connection.host) if isinstance(connection, redis.Connection) else "",
        encrypted=encrypted,
        verified=verified,
        advice=(
            "use rediss://, with ssl_check_hostname=true and without ssl_cert_reqs"
            if encrypted
            else "use rediss://, and ssl_ca_certs where the authority is your own"
        ),
    )
