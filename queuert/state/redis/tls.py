"""Warnings about the TLS settings of a Redis URL."""

from __future__ import annotations

import ssl

import redis
from redis.retry import Retry

from queuert.state.redis.settings import RedisSettings
from queuert.state.tls import tls_warnings
from queuert.state.types import StoreWarning


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
