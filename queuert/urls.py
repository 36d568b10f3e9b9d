"""Stores by address: ``postgresql://``, ``redis://``, ``sqlite://`` and ``embedded://``.

| address | jobs live |
|---|---|
| ``postgresql://USER:PASSWORD@HOST:PORT/DATABASE`` | in a schema of a Postgres database |
| ``redis://USER:PASSWORD@HOST:PORT/0``, ``rediss://`` with TLS, ``unix:///run/redis.sock`` | in Redis or Valkey |
| ``sqlite:///queue.db``, ``sqlite:////var/lib/app/queue.db`` | in a file: three slashes relative, four absolute |
| ``sqlite://`` | in the memory of this process |
| ``embedded://`` | in a Postgres that this process starts, and that goes with it |
| ``embedded:///data``, ``embedded:////var/lib/app/data`` | in one whose directory is kept: relative, absolute |

Options follow a question mark: ``schema``, ``prepare_threshold`` (a number, or ``none``) and all of libpq's for
Postgres; ``namespace``, ``connect_timeout``, ``wait_for_flush`` (``yes`` or ``no``), ``db`` and redis-py's ``ssl_...``
for Redis; ``schema`` for an embedded Postgres; ``answer_timeout`` for all. Timeouts are seconds. Special characters in
names and passwords are percent-encoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from queuert.errors import ConfigurationError
from queuert.optional_packages import how_to_install

if TYPE_CHECKING:
    from queuert.state.adapter import StateAdapter

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*")


def state_from_url(url: str, *, application_name: str = "queuert", **options: str) -> StateAdapter:
    """The store at an address, as this module's table lists them.

    Nothing is connected, but for ``embedded://``: that starts a server, if this process has none in the directory, and
    brings its schema up to date, which takes a second or two.

    Args:
        url: the address; a libpq connection string (``host=... dbname=...``) will do as well.
        application_name: shown in Postgres' ``pg_stat_activity``, unless the address has one; other stores show none.
        options: as after the question mark of the address.

    Raises:
        ConfigurationError: the address, its scheme or an option makes no sense, an option is given twice, or an
            optional package is not installed. The address is not repeated, since it may hold a password.
        EmbeddedServerError: with ``embedded://``: there is no Postgres to run, its directory is in use, or it does not
            start.

    Example:
        >>> state_from_url("sqlite:///queue.db")
        SQLiteState('queue.db')
    """
    address = _address(url, options)
    with _packages_by_extra():
        return _MAKERS[address.scheme](address, application_name)


def postgres_from_url(url: str, **options: str) -> tuple[str, str]:
    """The connection string and the schema of an address whose jobs live in Postgres, as the migrations want them.

    Arguments and errors are those of :func:`state_from_url`, and an address of another store is an error.
    """
    address = _address(url, options)
    if address.scheme == "embedded":
        return _embedded_dsn(address)
    if address.scheme not in _POSTGRES:
        raise ConfigurationError(f"{address.scheme}:// is no Postgres, and has no migrations: it needs none")
    return _postgres_dsn(address)


# --- addresses --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Address:
    scheme: str
    bare: str = field(repr=False)
    """The address without its options."""
    options: dict[str, str] = field(repr=False)

    @property
    def rest(self) -> str:
        """What follows the scheme."""
        return self.bare.partition("://")[2]

    def only(self, known: Collection[str], others: Collection[str] = (), more: str = "") -> None:
        """Refuse other options than these; ``more`` says what the others are."""
        for name in self.options:
            if name not in known and name not in others:
                raise ConfigurationError(
                    f"{self.scheme}:// has no option {_shown(name)}; it has {', '.join(known)}{more}"
                )

    def chosen(self, **readers: Callable[[str, str], Any]) -> dict[str, Any]:
        """The values of those options that are given."""
        return {name: read(name, self.options[name]) for name, read in readers.items() if name in self.options}

    def with_options(self, names: Mapping[str, str]) -> str:
        """The address with these options alone."""
        query = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in names.items())
        return f"{self.bare}?{query}" if query else self.bare


def _address(url: str, given: Mapping[str, str]) -> _Address:
    bare, _, query = url.partition("?")
    scheme, separator, _ = bare.partition("://")
    if "=" in scheme:
        # libpq's other form, which may hold question marks.
        return _Address("postgresql", url, _merged("", given))
    if not separator or not _SCHEME.fullmatch(scheme):
        raise ConfigurationError(f"an address begins with a scheme: {_known()}")
    if scheme.lower() not in _MAKERS:
        driver = "; leave out the driver after +" if scheme.partition("+")[0].lower() in _MAKERS else ""
        raise ConfigurationError(f"no store has the scheme {scheme[:40]!r}{driver}: {_known()}")
    # libpq knows its schemes in small letters alone.
    return _Address(scheme.lower(), scheme.lower() + bare[len(scheme) :], _merged(query, given))


def _known() -> str:
    return ", ".join(f"{scheme}://" for scheme in _MAKERS)


def _merged(query: str, given: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in (*_pairs(query), *given.items()):
        if options.setdefault(name, value) != value:
            raise ConfigurationError(f"the option {_shown(name)} is given twice, with two values")
    return options


def _pairs(query: str) -> Iterator[tuple[str, str]]:
    # As libpq reads them: a plus is a plus.
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        yield unquote(name), unquote(value)


def _shown(name: str) -> str:
    # With a question mark in a password, its end is taken for an option.
    return repr(name) if name.isidentifier() else "of that name (if a password holds a ?, write %3F)"


def _text(name: str, text: str) -> str:
    return text


def _seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{name} is {text[:40]!r}: a number of seconds") from None


def _yes_or_no(name: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise ConfigurationError(f"{name} is {text[:40]!r}: yes, or no")
    return text == "yes"


def _number_or_none(name: str, text: str) -> int | None:
    if text.lower() == "none":
        return None
    if not text.isdecimal():
        raise ConfigurationError(f"{name} is {text[:40]!r}: a number, or none")
    return int(text)


# --- stores -----------------------------------------------------------------------------------------------------------

_POSTGRES_OPTIONS = ("schema", "answer_timeout", "prepare_threshold")
_POSTGRES_READERS = {"answer_timeout": _seconds, "prepare_threshold": _number_or_none}


def _postgres_dsn(address: _Address) -> tuple[str, str]:
    from queuert.migrations import DEFAULT_SCHEMA, check_schema_name, checked_dsn
    from queuert.state.postgres.settings import known_options, with_options

    theirs = {name: value for name, value in address.options.items() if name not in _POSTGRES_OPTIONS}
    address.only(_POSTGRES_OPTIONS, known_options(), " and those of libpq")
    is_url = "://" in address.bare.partition("=")[0]
    dsn = address.with_options(theirs) if is_url else with_options(address.bare, theirs)
    checked_dsn(dsn)
    return dsn, check_schema_name(address.options.get("schema", DEFAULT_SCHEMA))


def _postgres(address: _Address, application_name: str) -> StateAdapter:
    from queuert.state.postgres import PostgresState

    dsn, schema = _postgres_dsn(address)
    return PostgresState(dsn, schema=schema, application_name=application_name, **address.chosen(**_POSTGRES_READERS))


def _redis(address: _Address, _: str) -> StateAdapter:
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
    connections_of(url, 1.0)  # It is read when it is first used, and should be refused now.
    return RedisState(url, **address.chosen(**own))


def _sqlite(address: _Address, _: str) -> StateAdapter:
    from queuert.state.sqlite import SQLiteState

    address.only(("answer_timeout",))
    path = _path(address, "queue.db")
    chosen = address.chosen(answer_timeout=_seconds)
    return SQLiteState(**chosen) if path in (None, ":memory:") else SQLiteState(path, **chosen)


def _embedded(address: _Address, application_name: str) -> StateAdapter:
    from queuert.state.postgres import PostgresState

    dsn, schema = _embedded_dsn(address)
    return PostgresState(
        dsn, schema=schema, application_name=application_name, **address.chosen(answer_timeout=_seconds)
    )


def _embedded_dsn(address: _Address) -> tuple[str, str]:
    from queuert import migrations
    from queuert.embedded.shared import shared_postgres

    address.only(("schema", "answer_timeout"))
    schema = migrations.check_schema_name(address.options.get("schema", migrations.DEFAULT_SCHEMA))
    dsn = shared_postgres(_path(address, "data"))
    migrations.upgrade(dsn, schema=schema)
    return dsn, schema


def _path(address: _Address, example: str) -> str | None:
    """What comes after the third slash; None where nothing does."""
    host, slash, path = address.rest.partition("/")
    if host:
        raise ConfigurationError(
            f"{address.scheme}:// has no host: {address.scheme}:///{example} is a path from here, and"
            f" {address.scheme}:////var/lib/{example} one from the root"
        )
    return unquote(path) or None if slash else None


_POSTGRES = ("postgresql", "postgres")
_MAKERS: dict[str, Callable[[_Address, str], StateAdapter]] = {
    **dict.fromkeys(_POSTGRES, _postgres),
    **dict.fromkeys(("redis", "rediss", "unix"), _redis),
    "sqlite": _sqlite,
    "embedded": _embedded,
}


@contextmanager
def _packages_by_extra() -> Iterator[None]:
    """The lack of a package as an error that says how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = how_to_install(error)
        if message is None:
            raise
        raise ConfigurationError(message) from error
