"""Limits on how many jobs run at once, and how many attempts begin within a time, across all workers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

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

    Raises:
        ConfigurationError: a number is below 1, or no limit is set.

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
            fits = value is None or (type(value) is int and value >= 1)
            _check(fits, f"{name} must be an integer of at least 1, got {value!r}")
        _check(isinstance(self.rate, Rate | None), f"rate must be Rate(count, per=seconds), got {self.rate!r}")
        _check(
            (self.concurrency, self.per_key, self.rate) != (None, None, None),
            "Limits needs at least one of concurrency, per_key and rate",
        )
