"""Deduplication: one chain per key, however often it is started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from queuert.errors import ConfigurationError, InvalidIdentifierError
from queuert.texts import check_text


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

    With ``debounce``, a start replaces the input of a chain whose first job waits to begin, instead of being dropped:
    the job keeps the input of the start that commits last, and is due ``debounce`` seconds after that start. The handle
    then has ``debounced`` set as well. Only the input and the due time change; the other arguments of the first start
    remain. If the first job has begun already, or waits for other chains, a new chain is started.

    Args:
        key: any text of up to 512 characters; keys of different job types are independent.
        scope: ``"open"`` matches open chains, ``"any"`` all stored chains.
        window: only chains that were started within this many seconds (or this timedelta) match; None matches all.
        excluding: chains that do not match, by id or handle: a chain that starts its successor excludes itself.
        debounce: seconds (or a timedelta) from the last start of the key until the job is due. Not together with
            ``window``, the scope ``"any"``, ``run_at`` or blockers.
        max_delay: with ``debounce``: the job is due this many seconds (or this timedelta) after the first start at the
            latest, however often it is started again; None sets no limit.

    Raises:
        ConfigurationError: the scope is unknown; a duration is not above 0 and at most a hundred years; or ``debounce``
            and ``max_delay`` do not fit together or with the other arguments.
        InvalidIdentifierError: the key or an excluded id cannot be stored.

    Example:
        >>> Deduplicate("report-7", scope="any", window=3600).window
        3600.0
        >>> Deduplicate("index-7", debounce=30, max_delay=300).max_delay
        300.0
    """

    key: str
    scope: DeduplicationScope | str = DeduplicationScope.OPEN
    window: float | timedelta | None = None
    excluding: Iterable[Any] = ()
    debounce: float | timedelta | None = None
    max_delay: float | timedelta | None = None

    def __post_init__(self) -> None:
        check_text(self.key, what="deduplication key")
        try:
            object.__setattr__(self, "scope", DeduplicationScope(self.scope))
        except ValueError:
            raise ConfigurationError(f"deduplication scope must be 'open' or 'any', got {self.scope!r}") from None
        for name in ("window", "debounce", "max_delay"):
            object.__setattr__(self, name, _seconds(name, getattr(self, name)))
        self._check_debounce()
        if isinstance(self.excluding, str):
            raise InvalidIdentifierError("excluding must be a sequence of chains, got a string; write [id]")
        ids = tuple(one if isinstance(one, str) else one.id for one in self.excluding)
        object.__setattr__(self, "excluding", tuple(check_text(one, what="chain id") for one in ids))

    def _check_debounce(self) -> None:
        if self.debounce is None:
            if self.max_delay is not None:
                raise ConfigurationError("max_delay limits debounce: pass debounce=")
            return
        if self.max_delay is not None and self.max_delay < self.debounce:  # type: ignore[operator]
            raise ConfigurationError(f"max_delay must be at least debounce ({self.debounce} s), got {self.max_delay} s")
        if self.window is not None or self.scope is not DeduplicationScope.OPEN:
            raise ConfigurationError("debounce concerns waiting jobs only: pass neither window= nor scope='any'")


def _seconds(name: str, value: float | timedelta | None) -> float | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not 0 < seconds <= 100 * 365 * 86_400:
        raise ConfigurationError(
            f"deduplication {name} must be above 0 seconds and at most a hundred years, got {seconds} s"
        )
    return seconds
