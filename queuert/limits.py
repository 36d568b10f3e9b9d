"""Limits on how many jobs run at once and how many attempts begin within a time; turns and order of keys; pauses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from queuert.errors import ConfigurationError


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigurationError(message)


@dataclass(frozen=True, slots=True)
class Rate:
    """Allows at most ``count`` attempts to begin within any ``per`` seconds (or this timedelta).

        >>> Rate(10, per=60).per
        60.0

    Raises:
        ConfigurationError: a value is out of range.
    """

    count: int
    per: float | timedelta = 1.0

    def __post_init__(self) -> None:
        _check(
            isinstance(self.per, timedelta | int | float),
            f"per of a rate must be seconds or a timedelta, got {self.per!r}",
        )
        seconds = self.per.total_seconds() if isinstance(self.per, timedelta) else float(self.per)
        object.__setattr__(self, "per", seconds)
        fits = type(self.count) is int and 1 <= self.count <= 1_000_000
        _check(fits, f"count of a rate must be an integer between 1 and 1,000,000, got {self.count!r}")
        _check(0.001 <= seconds <= 86_400 * 31, f"per of a rate must be between 1 ms and 31 days, got {seconds} s")

    @property
    def seconds(self) -> float:
        """The length of the window, in seconds."""
        return float(self.per)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits the attempts of one job type across all workers. The store enforces them in the claim.

    Only a running job counts towards a limit: it stops counting when its attempt ends, or when the lease of a dead
    worker expires. Give all workers of a job type the same limits, as each claim enforces those of its own worker.

    Args:
        concurrency: how many jobs of the type may run at once.
        per_key: how many jobs of one ``limit_key`` (an argument of ``start_chain``) may run at once. Jobs without a key
            are not limited.
        rate: how many attempts of one ``limit_key`` may begin within a time; jobs without a key share one rate.
        fair: whether keys take turns: each claim goes on with the key after the one that was served last, however many
            jobs the others have. Priority and age decide within a key. Jobs without a key have turns like one key.
        ordered: whether the chains of one ``limit_key`` that begin with this job type run one after the other, in the
            order of their starts. The next begins when the one before is closed: completed, failed or cancelled. Jobs
            without a key have no order. Needs a store with ``Capability.ORDERED_KEYS``.

    Raises:
        ConfigurationError: a number is below 1, a flag is not a bool, no limit is set, or ``ordered`` is given together
            with ``per_key``.

    Example:
        >>> Limits(concurrency=10, per_key=1, rate=Rate(5, per=60)).per_key
        1
    """

    concurrency: int | None = None
    per_key: int | None = None
    rate: Rate | None = None
    fair: bool = False
    ordered: bool = False

    def __post_init__(self) -> None:
        for name in ("concurrency", "per_key"):
            value = getattr(self, name)
            fits = value is None or (type(value) is int and value >= 1)
            _check(fits, f"{name} must be an integer of at least 1, got {value!r}")
        _check(isinstance(self.rate, Rate | None), f"rate must be Rate(count, per=seconds), got {self.rate!r}")
        for name in ("fair", "ordered"):
            value = getattr(self, name)
            _check(type(value) is bool, f"{name} must be True or False, got {value!r}")
        both = self.ordered and self.per_key is not None
        _check(not both, "ordered already runs one chain of a key at a time: leave out per_key")
        _check(self.fair or self.bounded, "Limits needs at least one of concurrency, per_key, rate, fair and ordered")

    @property
    def bounded(self) -> bool:
        """Whether they can hold back a due job. ``fair`` alone only changes which job comes first."""
        return self.ordered or (self.concurrency, self.per_key, self.rate) != (None, None, None)


@dataclass(frozen=True, slots=True)
class TypeTraits:
    """What is particular to a job type, as a worker has recorded it. Most types have no such record."""

    type: str
    completed_by_client: bool = False
    overdue_after: float | None = None
    """Seconds for which a job may wait for a client before it is overdue; None: for ever."""
    closes_with_parent: bool = False


@dataclass(frozen=True, slots=True)
class ClientType:
    """A job type whose jobs clients complete, as a worker has recorded it."""

    type: str
    overdue_after: float | None
    """Seconds for which a job may wait for a client before it is overdue; None: for ever."""


def client_types(traits: Iterable[TypeTraits]) -> list[ClientType]:
    """Return those job types that clients complete."""
    return [ClientType(one.type, one.overdue_after) for one in traits if one.completed_by_client]


@dataclass(frozen=True, slots=True)
class PausedType:
    """A job type whose jobs are not claimed."""

    type: str
    paused_at: datetime
    reason: str | None
    by: str | None = None
    """Who paused it, as given."""
