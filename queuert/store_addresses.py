"""Addresses of stores: the scheme that says which store it is, and the options after a question mark.

What is at an address, :mod:`queuert.urls` opens; who cannot is told what to check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from queuert.errors import ConfigurationError, StateUnavailableError

POSTGRES = ("postgresql", "postgres")
REDIS = ("redis", "rediss", "unix")
SQLITE = "sqlite"
EMBEDDED = "embedded"
SCHEMES = (*POSTGRES, *REDIS, SQLITE, EMBEDDED)

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """An address, taken apart as far as all stores have the same parts."""

    scheme: str
    bare: str = field(repr=False)
    """The URL without its options."""
    options: dict[str, str] = field(repr=False)

    @property
    def rest(self) -> str:
        """The part after the scheme."""
        return self.bare.partition("://")[2]

    def only(self, known: Collection[str], others: Collection[str] = (), more: str = "") -> None:
        """Raise if there is an option that is neither in ``known`` nor in ``others``, which ``more`` describes."""
        for name, value in self.options.items():
            if name not in known and name not in others:
                raise ConfigurationError(
                    f"{self.scheme}:// has no option {_shown(name, value)}; use {', '.join(known)}{more}"
                )

    def chosen(self, **readers: Callable[[str, str], Any]) -> dict[str, Any]:
        """Return the values of the options that are set."""
        return {name: read(name, self.options[name]) for name, read in readers.items() if name in self.options}

    def with_options(self, names: Mapping[str, str]) -> str:
        """Return the URL with only these options."""
        query = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in names.items())
        return f"{self.bare}?{query}" if query else self.bare


def read_address(url: str, given: Mapping[str, str]) -> StoreAddress:
    """Return the address in a URL, or in libpq's other form, with further options.

    Raises:
        ConfigurationError: it has no scheme of a store, or an option has two values. The message does not repeat the
            URL, as it may contain a password.
    """
    bare, _, query = url.partition("?")
    scheme, separator, _ = bare.partition("://")
    if "=" in scheme:
        # libpq's other form, which may contain question marks.
        return StoreAddress("postgresql", url, _merged("", given))
    if not separator or not _SCHEME.fullmatch(scheme):
        raise ConfigurationError(f"a store's URL must begin with a scheme: {_known()}")
    if scheme.lower() not in SCHEMES:
        driver = "; leave out the driver after +" if scheme.partition("+")[0].lower() in SCHEMES else ""
        raise ConfigurationError(f"scheme must be one of {_known()}, got {scheme[:40]!r}{driver}")
    # libpq accepts schemes in lower case only.
    return StoreAddress(scheme.lower(), scheme.lower() + bare[len(scheme) :], _merged(query, given))


def _known() -> str:
    return ", ".join(f"{scheme}://" for scheme in SCHEMES)


def _merged(query: str, given: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in (*option_pairs(query), *given.items()):
        if options.setdefault(name, value) != value:
            raise ConfigurationError(f"option {_shown(name, value)} must have one value, got two: remove one of them")
    return options


def option_pairs(query: str) -> Iterator[tuple[str, str]]:
    """Yield the options after the question mark, as libpq reads them: a plus is not a space."""
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        yield unquote(name), unquote(value)


def _shown(name: str, value: str) -> str:
    # The part of a password after a question mark looks like an option, and must not be shown. The host follows it.
    if name.isidentifier() and "@" not in value:
        return repr(name)
    return "of that name (write %3F for a ? in a password)"


_REFUSED_LOGIN = re.compile(
    r"authentication (?:failed|required)|no password supplied|username-password pair|not permitted to log in"
    r"|role \".*\" does not exist|\bNOAUTH\b|\bWRONGPASS\b",
    re.IGNORECASE,
)
"""What servers say of a refused login. Drivers tell it from other failures to connect by nothing else."""


def refuses_login(message: str) -> bool:
    """Whether a server says by this that it refuses the login."""
    return _REFUSED_LOGIN.search(message) is not None


def what_to_check(error: StateUnavailableError) -> str:
    """Return what a person has to check who could not connect; empty if the message says it."""
    advice = "check the address, and that the server runs"
    if refuses_login(str(error)):
        advice = "check the user and the password"
    return "" if advice in str(error) else f" ({advice})"
