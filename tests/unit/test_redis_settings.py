"""Of redis-py's options only those that are known to be harmless are taken over, whatever the next version adds."""

from __future__ import annotations

from typing import Any

import pytest
import redis.retry

from queuert.errors import ConfigurationError
from queuert.notify.redis.settings import connections_of
from queuert.state.redis.settings import RedisSettings

URL = "redis://user:word@host:7000/3?socket_keepalive=yes"
TLS = "rediss://host?ssl_cert_reqs=none&ssl_check_hostname=no"


def store_pool(url: str) -> Any:
    settings = RedisSettings(url, "prefix", 1.0, 2.0)
    settings.check()
    return settings.pool(redis.BlockingConnectionPool, redis.Connection, redis.retry.Retry, 1)


class NewerConnection(redis.Connection):
    """A connection of a version of redis-py that has one more option."""

    def __init__(self, *, brand_new: object = None, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self.brand_new = brand_new


class NewerPool:
    """A pool of that version, which gives its connections this option by itself."""

    def __init__(self, **options: Any) -> None:
        self.connection_class = options.pop("connection_class", NewerConnection)
        self.connection_kwargs = options

    @classmethod
    def from_url(cls, url: str) -> NewerPool:
        return cls(host="host", brand_new=object())


def test_address_user_and_encryption_are_taken_over() -> None:
    taken = store_pool(URL).connection_kwargs
    assert {"host": "host", "port": 7000, "db": 3, "username": "user", "password": "word"}.items() <= taken.items()
    notify: Any = connections_of(URL, 1.0)()
    assert (notify.host, notify.port, notify.username, notify.password) == ("host", 7000, "user", "word")
    assert notify.db == 0
    assert store_pool(TLS).connection_kwargs["ssl_cert_reqs"] == "none"
    assert isinstance(connections_of(TLS, 1.0)(), redis.SSLConnection)


def test_options_of_a_newer_redis_are_not_taken_over() -> None:
    settings = RedisSettings(URL, "prefix", 1.0, 2.0)
    assert "brand_new" not in settings.pool(NewerPool, redis.Connection, redis.retry.Retry, 1).connection_kwargs
    client = redis.Redis(connection_pool=redis.ConnectionPool(NewerConnection, host="host", brand_new=object()))
    made: Any = connections_of(client, 1.0)()
    assert (type(made), made.host, made.brand_new) == (NewerConnection, "host", None)


@pytest.mark.parametrize("option", ["usrname=me", "ssl_cert_reqs=none", "socket_timeout=soon"])
def test_an_option_that_redis_does_not_know_is_refused(option: str) -> None:
    """A misspelled user is not to become no user."""
    with pytest.raises(ConfigurationError):
        store_pool(f"redis://host?{option}")
    with pytest.raises(ConfigurationError):
        connections_of(f"redis://host?{option}", 1.0)
