"""The settings of a connection to Postgres, checked once and shared by sync and async stores; TLS warnings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psycopg import ConnectionInfo
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo
from psycopg.pq.abc import PGconn

from queuert.errors import ConfigurationError
from queuert.migrations import checked_dsn
from queuert.passwords import Password, checked_password, current_password
from queuert.schema_names import DEFAULT_SCHEMA, check_schema_name
from queuert.state.adapter import tls_warnings
from queuert.state.types import StoreWarning

REQUIRED_REVISION = "0029"
"""The oldest revision of the schema that this version works with."""

_KEEPALIVE = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """The connection string, the schema, and the timeouts of every connection in seconds."""

    dsn: str = field(repr=False)
    schema: str = DEFAULT_SCHEMA
    prepare_threshold: int | None = 1
    connect_timeout: float = 10.0
    answer_timeout: float = 30.0
    application_name: str = "queuert"
    password: Password | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_schema_name(self.schema)
        checked_dsn(self.dsn)
        checked_password(self.password)
        for name in ("connect_timeout", "answer_timeout"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} must be above 0 seconds, got {getattr(self, name)}")

    @property
    def address(self) -> tuple[str, str]:
        """The connection string and the schema: what is equal where a store and a notify adapter belong together."""
        return self.dsn, self.schema

    def connection_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of psycopg's ``connect``. The connection string overrides them, except for the
        encoding."""
        defaults: dict[str, Any] = {
            **_KEEPALIVE,
            "connect_timeout": max(2, round(self.connect_timeout)),
            "application_name": self.application_name,
        }
        given = checked_dsn(self.dsn)
        chosen = {name: value for name, value in defaults.items() if name not in given}
        # The protocol module sends UTF-8, whatever the connection string, the environment or the database say.
        fixed = {"client_encoding": "utf8", "autocommit": True, "prepare_threshold": self.prepare_threshold}
        return {**chosen, **fixed}

    def current_dsn(self, dsn: str | None = None) -> str:
        """Return the connection string, or the given one, with the current password if a function returns it.

        Raises:
            StateUnavailableError: the function raised, or returned no text.
        """
        chosen = self.dsn if dsn is None else dsn
        return chosen if self.password is None else make_conninfo(chosen, password=current_password(self.password))


def known_options() -> frozenset[str]:
    """Return the options that a connection string may have. ``ssl`` is allowed in URIs only."""
    return frozenset({"ssl", *(option.keyword.decode() for option in Conninfo.get_defaults())})


def with_options(text: str, options: Mapping[str, str]) -> str:
    """Return a connection string of the form ``host=... dbname=...`` with more options.

    Raises:
        ConfigurationError: libpq cannot parse it.
    """
    return make_conninfo(**{**checked_dsn(text), **options}) if options else text


_VERIFIED = "verify-full"


def connection_warnings(pgconn: PGconn) -> tuple[StoreWarning, ...]:
    """Return the warnings for an open connection, wherever its settings came from.

    Any ``sslmode`` below ``verify-full`` is a risk: libpq then may encrypt, but accepts the certificate of any server.
    """
    info = ConnectionInfo(pgconn)
    mode = info.get_parameters().get("sslmode", "prefer")
    return tls_warnings(
        info.hostaddr or info.host,
        encrypted=bool(pgconn.ssl_in_use),
        verified=mode == _VERIFIED,
        advice=f"sslmode is {mode}; set sslmode={_VERIFIED}, and sslrootcert where the authority is your own",
    )
