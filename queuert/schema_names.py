"""The names of schemas on Postgres."""

from __future__ import annotations

import re

from queuert.errors import ConfigurationError
from queuert.store_addresses import option_pairs, read_address

DEFAULT_SCHEMA = "queuert"

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,39}")


def check_schema_name(schema: str) -> str:
    """Return ``schema`` if it is a plain lower-case identifier of at most 40 characters.

    Forty leaves room for what is derived from it, such as notification channels (Postgres allows 63 bytes).

    Raises:
        ConfigurationError: it is not.
    """
    if not _IDENTIFIER.fullmatch(str(schema)):
        raise ConfigurationError(
            f"schema must be 1 to 40 lower-case letters, digits and _, not beginning with a digit, got {schema!r}"
        )
    return schema


def split_schema(dsn: str, schema: str | None) -> tuple[str, str]:
    """Return a connection string without the option ``schema``, and the schema: this one, that option, or the default.

    Raises:
        ConfigurationError: both are given, and differ; or the scheme is unknown.
    """
    query = dsn.partition("?")[2] if "://" in dsn.partition("=")[0] else ""
    if "schema" not in dict(option_pairs(query)):
        return dsn, DEFAULT_SCHEMA if schema is None else schema
    address = read_address(dsn, {} if schema is None else {"schema": schema})
    others = {name: value for name, value in address.options.items() if name != "schema"}
    return address.with_options(others), address.options["schema"]


def upgrade_command(schema: str) -> str:
    """Return the command that upgrades this schema."""
    return "queuert migrate up" if schema == DEFAULT_SCHEMA else f"queuert migrate up --schema {schema}"
