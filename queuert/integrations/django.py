"""Django: the address of a database of its settings, for Queuert's clients and workers.

They have connections of their own, beside Django's::

    client = Client(PostgresState(database_dsn()), job_types)

In Django's tests it is the address of the test database. So make clients, and workers, when they are needed, and not
when a module is imported.
"""

from __future__ import annotations

from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections

from queuert.errors import ConfigurationError
from queuert.state.postgres.settings import known_options, with_options


def database_dsn(alias: str = DEFAULT_DB_ALIAS) -> str:
    """Return the connection string of a database of Django's settings, for :class:`~queuert.PostgresState`.

    Args:
        alias: its name in ``DATABASES``.

    Raises:
        ConfigurationError: it is not Postgres.
        django.utils.connection.ConnectionDoesNotExist: there is no database of this name.
        django.core.exceptions.ImproperlyConfigured: its settings name no database.
    """
    wrapper: Any = connections[alias]
    if wrapper.vendor != "postgresql":
        raise ConfigurationError(f"database {alias!r} of Django must be Postgres, got {wrapper.vendor}")
    options = known_options() - {"client_encoding"}
    given = wrapper.get_connection_params().items()
    return with_options("", {name: str(value) for name, value in given if name in options and value is not None})
