"""Deduplication: one chain per key, however often it is started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from queuert.errors import ConfigurationError, InvalidIdentifierError
from queuert.payloads import check_text


class DeduplicationScope(StrEnum):
    """Which existing chains of a key make a start a duplicate."""

    OPEN = "open"
    """Chains that are open."""
    ANY = "any"
    """All chains that are stored, also closed ones, so that a start may return a cached result."""


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """Starts a chain only if no chain with the same key and job type matches; otherwise returns the matching chain.

    If several match, the newest is returned. The handle has ``deduplicated`` set, and the new input is dropped. Starts
    of one key are serialised: the second one waits until the first has committed or rolled back, and gets its chain
    only if it was committed. Within one ``start_chains`` the first start of a key decides for all others of that key,
    whatever their own scopes and windows.

    Args:
        key: any text of up to 512 characters; keys of different job types are independent.
        scope: ``"open"`` matches open chains, ``"any"`` all stored chains.
        window: only chains that were started within this many seconds (or this timedelta) match; None matches all.
        excluding: chains that do not match, by id or handle: a chain that starts its successor excludes itself.

    Raises:
        ConfigurationError: the scope is unknown, or the window is not above 0 and at most a hundred years.
        InvalidIdentifierError: the key or an excluded id cannot be stored.

    Example:
        >>> Deduplicate("report-7", scope="any", window=3600).window
        3600.0
    """

    key: str
    scope: DeduplicationScope | str = DeduplicationScope.OPEN
    window: float | timedelta | None = None
    excluding: Iterable[Any] = ()

    def __post_init__(self) -> None:
        check_text(self.key, what="deduplication key")
        try:
            object.__setattr__(self, "scope", DeduplicationScope(self.scope))
        except ValueError:
            raise ConfigurationError(f"deduplication scope must be 'open' or 'any', got {self.scope!r}") from None
        if isinstance(self.window, timedelta):
            object.__setattr__(self, "window", self.window.total_seconds())
        if self.window is not None:
            object.__setattr__(self, "window", float(self.window))  # type: ignore[arg-type]
            if not 0 < self.window <= 100 * 365 * 86_400:  # type: ignore[operator]
                raise ConfigurationError(
                    f"deduplication window must be above 0 seconds and at most a hundred years, got {self.window} s"
                )
        if isinstance(self.excluding, str):
            raise InvalidIdentifierError("excluding must be a sequence of chains, got a string; write [id]")
        ids = tuple(one if isinstance(one, str) else one.id for one in self.excluding)
        object.__setattr__(self, "excluding", tuple(check_text(one, what="chain id") for one in ids))
