"""How a store connects to Postgres: checked once, shared by the sync and the async code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from queuert.errors import ConfigurationError
from queuert.migrations import DEFAULT_SCHEMA, check_schema_name, checked_dsn

REQUIRED_REVISION = "0011"
"""The oldest schema that this version works with."""

_KEEPALIVE = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """Connection string, schema, and the limits in seconds of every connection."""

    dsn: str = field(repr=False)
    schema: str = DEFAULT_SCHEMA
    prepare_threshold: int | None = 1
    connect_timeout: float = 10.0
    answer_timeout: float = 30.0
    application_name: str = "queuert"

    def __post_init__(self) -> None:
        check_schema_name(self.schema)
        checked_dsn(self.dsn)
        for name in ("connect_timeout", "answer_timeout"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} must be above 0 seconds, got {getattr(self, name)}")

    def connection_arguments(self) -> dict[str, Any]:
        """Keyword arguments for psycopg's ``connect``; the connection string goes first, but for the encoding."""
        defaults: dict[str, Any] = {
            **_KEEPALIVE,
            "connect_timeout": max(2, round(self.connect_timeout)),
            "application_name": self.application_name,
        }
        given = checked_dsn(self.dsn)
        chosen = {name: value for name, value in defaults.items() if name not in given}
        # What goes past psycopg's cursors is UTF-8, whatever the connection string, the environment, the database say.
        fixed = {"client_encoding": "utf8", "autocommit": True, "prepare_threshold": self.prepare_threshold}
        return {**chosen, **fixed}


def known_options() -> frozenset[str]:
    """The names that a connection string may have. ``ssl`` is understood in addresses alone."""
    return frozenset({"ssl", *(option.keyword.decode() for option in Conninfo.get_defaults())})


def with_options(text: str, options: Mapping[str, str]) -> str:
    """A connection string of the form ``host=... dbname=...`` with more options.

    Raises:
        ConfigurationError: libpq does not understand it.
    """
    return make_conninfo(**{**checked_dsn(text), **options}) if options else text
