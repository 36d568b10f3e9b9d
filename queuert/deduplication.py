"""One chain for one key, however many start it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from queuert.errors import ConfigurationError, InvalidIdentifierError
from queuert.payloads import check_text


class DeduplicationScope(StrEnum):
    """Which chains of a key are duplicates of a new one."""

    OPEN = "open"
    """Those that have not closed."""
    ANY = "any"
    """All that are stored, closed ones too: the cached result."""


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """Start a chain only if none of the same key and job type is a duplicate of it; otherwise get that one.

    The newest match is returned, its handle says ``deduplicated``, and the new input is dropped. Starts of one key are
    serialised: whoever comes second waits until the first has committed or rolled back, and gets the first one's
    chain only if it stands. Within one ``start_chains`` the first start of a key decides for the others of that key,
    whatever their own scopes and windows.

    Args:
        key: any text of up to 512 characters; it counts together with the type of the first job.
        scope: ``"open"`` matches chains that have not closed, ``"any"`` all that are stored.
        window: only chains that were started within this many seconds (or this timedelta) match; None for all.
        excluding: chains that do not match, by id or handle: a chain that starts its successor excludes itself.

    Raises:
        ConfigurationError: the scope is unknown, or the window is not above 0.
        InvalidIdentifierError: the key, or an excluded id, cannot be stored.

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
            raise ConfigurationError(f"deduplication scope {self.scope!r}: 'open' or 'any'") from None
        if isinstance(self.window, timedelta):
            object.__setattr__(self, "window", self.window.total_seconds())
        if self.window is not None:
            object.__setattr__(self, "window", float(self.window))  # type: ignore[arg-type]
            if not 0 < self.window <= 100 * 365 * 86_400:  # type: ignore[operator]
                raise ConfigurationError(f"deduplication window of {self.window} s: above 0, at most a hundred years")
        if isinstance(self.excluding, str):
            raise InvalidIdentifierError("excluded chains are given as a sequence, not as one string")
        ids = tuple(one if isinstance(one, str) else one.id for one in self.excluding)
        object.__setattr__(self, "excluding", tuple(check_text(one, what="chain id") for one in ids))
