"""How many jobs may run at once, and how many may start in a time, across all workers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from queuert.errors import ConfigurationError


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigurationError(message)


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` attempts begin in any ``per`` seconds.

    Raises:
        ConfigurationError: a value is out of range.
    """

    count: int
    per: float | timedelta = 1.0

    def __post_init__(self) -> None:
        seconds = self.per.total_seconds() if isinstance(self.per, timedelta) else float(self.per)
        object.__setattr__(self, "per", seconds)
        _check(type(self.count) is int and 1 <= self.count <= 1_000_000, f"a rate of {self.count!r}: 1 to a million")
        _check(0.001 <= seconds <= 86_400 * 31, f"a rate per {seconds} s: from a millisecond to 31 days")

    @property
    def seconds(self) -> float:
        """The length of the window, in seconds."""
        return float(self.per)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Limits:
    """What all workers together may do of one job type. Enforced by the store, in the claim.

    A slot is held by a running job and by nothing else: it is free when the attempt ends, or when a dead worker's
    lease expires. Give all workers of a type the same limits: each claim enforces its own.

    Args:
        concurrency: running jobs of the type.
        per_key: running jobs of one ``limit_key`` (an argument of ``start_chain``). Jobs without a key are not limited.
        rate: attempts that begin in a time, of one ``limit_key``; jobs without a key share one.

    Raises:
        ConfigurationError: a number is below 1, or nothing is limited.

    Example:
        >>> Limits(concurrency=10, per_key=1, rate=Rate(5, per=60)).per_key
        1
    """

    concurrency: int | None = None
    per_key: int | None = None
    rate: Rate | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "per_key"):
            value = getattr(self, name)
            _check(value is None or (type(value) is int and value >= 1), f"{name} is {value!r}: a number from 1 up")
        _check(isinstance(self.rate, Rate | None), f"rate is {self.rate!r}: a Rate")
        _check((self.concurrency, self.per_key, self.rate) != (None, None, None), "Limits() limits nothing")
