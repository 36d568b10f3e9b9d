"""What libpq knows of addresses."""

from __future__ import annotations

from collections.abc import Mapping

from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from queuert.migrations import checked_dsn


def known_options() -> frozenset[str]:
    """The names that a connection string may have. ``ssl`` is understood in addresses alone."""
    return frozenset({"ssl", *(option.keyword.decode() for option in Conninfo.get_defaults())})


def with_options(text: str, options: Mapping[str, str]) -> str:
    """A connection string of the form ``host=... dbname=...`` with more options.

    Raises:
        ConfigurationError: libpq does not understand it.
    """
    return make_conninfo(**{**checked_dsn(text), **options}) if options else text
