"""Opens stores by URL: ``postgresql://``, ``redis://``, ``sqlite://`` and ``embedded://``.

| address | jobs live |
|---|---|
| ``postgresql://USER:PASSWORD@HOST:PORT/DATABASE`` | in a schema of a Postgres database |
| ``redis://USER:PASSWORD@HOST:PORT/0``, ``rediss://`` with TLS, ``unix:///run/redis.sock`` | in Redis or Valkey |
| ``sqlite:///queue.db``, ``sqlite:////var/lib/app/queue.db`` | in a file: three slashes relative, four absolute |
| ``sqlite://`` | in the memory of this process |
| ``embedded://`` | in a Postgres that this process starts, and that is deleted with it |
| ``embedded:///data``, ``embedded:////var/lib/app/data`` | in one whose directory is kept: relative, absolute |

Options follow a question mark. Postgres has ``schema``, ``prepare_threshold`` (a number, or ``none``) and all options
of libpq; Redis has ``namespace``, ``connect_timeout``, ``wait_for_flush`` (``yes`` or ``no``), ``db`` and redis-py's
``ssl_...``; an embedded Postgres has ``schema``; all stores have ``answer_timeout``. Timeouts are seconds.
Percent-encode special characters in names and passwords.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote

from queuert.errors import ConfigurationError
from queuert.optional_packages import how_to_install
from queuert.schema_names import DEFAULT_SCHEMA, check_schema_name
from queuert.store_addresses import EMBEDDED, POSTGRES, REDIS, SQLITE, StoreAddress, read_address

if TYPE_CHECKING:
    from queuert.state.adapter import StateAdapter


def state_from_url(url: str, *, application_name: str = "queuert", **options: str) -> StateAdapter:
    """Return the store at a URL; the table of this module lists the schemes.

    It does not connect, except for ``embedded://``, which starts a server, if this process has none in the directory,
    and migrates its schema. That takes a second or two.

    Args:
        url: the URL, or a libpq connection string (``host=... dbname=...``).
        application_name: shown in Postgres' ``pg_stat_activity``, unless the URL has one; other stores ignore it.
        options: further options, as after the question mark of the URL.

    Raises:
        ConfigurationError: the URL, its scheme or an option is not valid, an option has two values, or a package
            is not installed. The message does not repeat the URL, as it may contain a password.
        EmbeddedServerError: with ``embedded://``: there is no Postgres to run, its directory is in use, or it does not
            start.

    Example:
        >>> state_from_url("sqlite:///queue.db")
        SQLiteState('queue.db')
    """
    address = read_address(url, options)
    with _packages_by_extra():
        return _MAKERS[address.scheme](address, application_name)


def postgres_from_url(url: str, **options: str) -> tuple[str, str]:
    """Return the connection string and the schema of a URL of Postgres, as the migrations need them.

    Arguments and errors are those of :func:`state_from_url`; the URL of another store is an error.
    """
    address = read_address(url, options)
    if address.scheme not in (*POSTGRES, EMBEDDED):
        raise ConfigurationError(
            f"{address.scheme}:// has no migrations and needs none: only postgresql:// and embedded:// have them"
        )
    with _packages_by_extra():
        return _embedded_dsn(address) if address.scheme == EMBEDDED else _postgres_dsn(address)


# --- the values of options --------------------------------------------------------------------------------------------


def _text(name: str, text: str) -> str:
    return text


def _seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{name} must be a number of seconds, got {text[:40]!r}") from None


def _yes_or_no(name: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise ConfigurationError(f"{name} must be yes or no, got {text[:40]!r}")
    return text == "yes"


def _number_or_none(name: str, text: str) -> int | None:
    if text.lower() == "none":
        return None
    if not text.isdecimal():
        raise ConfigurationError(f"{name} must be a number or 'none', got {text[:40]!r}")
    return int(text)


# --- stores -----------------------------------------------------------------------------------------------------------

_POSTGRES_OPTIONS = ("schema", "answer_timeout", "prepare_threshold")
_POSTGRES_READERS = {"answer_timeout": _seconds, "prepare_threshold": _number_or_none}


def _postgres_dsn(address: StoreAddress) -> tuple[str, str]:
    from queuert.migrations import checked_dsn
    from queuert.state.postgres.settings import known_options, with_options

    theirs = {name: value for name, value in address.options.items() if name not in _POSTGRES_OPTIONS}
    address.only(_POSTGRES_OPTIONS, known_options(), " and those of libpq")
    is_url = "://" in address.bare.partition("=")[0]
    dsn = address.with_options(theirs) if is_url else with_options(address.bare, theirs)
    checked_dsn(dsn)
    return dsn, check_schema_name(address.options.get("schema", DEFAULT_SCHEMA))


def _postgres(address: StoreAddress, application_name: str) -> StateAdapter:
    from queuert.state.postgres import PostgresState

    dsn, schema = _postgres_dsn(address)
    return PostgresState(dsn, schema=schema, application_name=application_name, **address.chosen(**_POSTGRES_READERS))


def _redis(address: StoreAddress, _: str) -> StateAdapter:
    from queuert.notify.redis.settings import connections_of
    from queuert.state.redis import RedisState

    own = {
        "namespace": _text,
        "connect_timeout": _seconds,
        "answer_timeout": _seconds,
        "wait_for_flush": _yes_or_no,
    }
    theirs = {name: value for name, value in address.options.items() if name == "db" or name.startswith("ssl_")}
    address.only(own, theirs, ", db and redis-py's ssl_...")
    url = address.with_options(theirs)
    connections_of(url, 1.0)  # Validates the URL now rather than at the first use.
    return RedisState(url, **address.chosen(**own))


def _sqlite(address: StoreAddress, _: str) -> StateAdapter:
    from queuert.state.sqlite import SQLiteState

    address.only(("answer_timeout",))
    path = _path(address, "queue.db")
    chosen = address.chosen(answer_timeout=_seconds)
    return SQLiteState(**chosen) if path in (None, ":memory:") else SQLiteState(path, **chosen)


def _embedded(address: StoreAddress, application_name: str) -> StateAdapter:
    from queuert.state.postgres import PostgresState

    dsn, schema = _embedded_dsn(address)
    return PostgresState(
        dsn, schema=schema, application_name=application_name, **address.chosen(answer_timeout=_seconds)
    )


def _embedded_dsn(address: StoreAddress) -> tuple[str, str]:
    from queuert import migrations
    from queuert.embedded.shared import shared_postgres

    address.only(("schema", "answer_timeout"))
    schema = check_schema_name(address.options.get("schema", DEFAULT_SCHEMA))
    dsn = shared_postgres(_path(address, "data"))
    migrations.upgrade(dsn, schema=schema)
    return dsn, schema


def _path(address: StoreAddress, example: str) -> str | None:
    """Return the part after the third slash; None if it is empty."""
    host, slash, path = address.rest.partition("/")
    if host:
        raise ConfigurationError(
            f"{address.scheme}:// must not have a host: write {address.scheme}:///{example} for a relative path, or"
            f" {address.scheme}:////var/lib/{example} for an absolute one"
        )
    return unquote(path) or None if slash else None


_MAKERS: dict[str, Callable[[StoreAddress, str], StateAdapter]] = {
    **dict.fromkeys(POSTGRES, _postgres),
    **dict.fromkeys(REDIS, _redis),
    SQLITE: _sqlite,
    EMBEDDED: _embedded,
}


@contextmanager
def _packages_by_extra() -> Iterator[None]:
    """Turns a missing package into a ConfigurationError that says what installs it."""
    try:
        yield
    except ImportError as error:
        message = how_to_install(error)
        if message is None:
            raise
        raise ConfigurationError(message) from error
