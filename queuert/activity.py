"""What workers did, by minute or hour and job type: counts of attempts, and histograms of how long they waited and ran.

Workers count in memory and write the counts with their heartbeats, about every 20 seconds. Minutes are kept for six
hours and then added up to hours, which are kept for 30 days.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias

from queuert.errors import ConfigurationError

Period: TypeAlias = Literal["minute", "hour"]

MINUTE: Final = 60
HOUR: Final = 3_600
"""Seconds of a period."""

MINUTES_KEPT: Final = 6 * HOUR
"""Seconds after the end of an hour until its minutes are added up."""

HOURS_KEPT: Final = 30 * 24 * HOUR
"""Seconds after which hours are dropped."""

BOUNDS: Final[tuple[float, ...]] = tuple(2.0**exponent / 1000 for exponent in range(26))
"""Upper bounds of the buckets in seconds: 0.001, 0.002, 0.004 and so on up to 33554.432, 9.3 hours. A duration is in
the first bucket whose bound it is below, or in one more bucket after the last."""

BUCKETS: Final = len(BOUNDS) + 1

COUNTS: Final = (
    "started", "completed", "continued", "retried", "failed",
    "cancelled", "interrupted", "waiting", "rejected", "reaped", "snoozed",
)  # fmt: skip
"""The names of the counts, in the order in which they are stored."""

WAIT_BEGINS: Final = len(COUNTS)
RUN_BEGINS: Final = WAIT_BEGINS + BUCKETS
NUMBERS: Final = RUN_BEGINS + BUCKETS
"""Counts, the buckets of the wait and those of the run as one list of so many numbers."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many durations are in each bucket of :data:`BOUNDS`.

    Example:
        >>> Histogram((0, 0, 90, 0, 10)).quantile(0.5)  # between 2 and 4 milliseconds
        0.0028284271247461905
        >>> Histogram((0, 0, 90, 0, 10)).quantile(0.99)
        0.011313708498984762
    """

    buckets: tuple[int, ...] = ()
    """Durations in each bucket, the shortest first; buckets at the end that are empty may be left out."""

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.buckets)

    def quantile(self, share: float) -> float | None:
        """Return the seconds that this share of the durations does not exceed; None if there are no durations.

        It is the geometric middle of the bucket in which the quantile lies: the exact one is at most a factor of 1.42
        (the square root of 2) larger or smaller. Quantiles below a millisecond are returned as 0.0005, and those
        from the last bound on, 9.3 hours, as that bound.

        Args:
            share: between 0 and 1: 0.5 is the median, 0.95 exceeds 95 percent.

        Raises:
            ConfigurationError: the share is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise ConfigurationError(f"the share of a quantile must be between 0 and 1, got {share!r}")
        rank = max(1, math.ceil(share * self.count))
        for bucket, number in enumerate(self.buckets):
            rank -= number
            if rank <= 0:
                return _middle(bucket)
        return None


def _middle(bucket: int) -> float:
    if bucket == 0:
        return BOUNDS[0] / 2
    if bucket >= len(BOUNDS):
        return BOUNDS[-1]
    return BOUNDS[bucket] / math.sqrt(2)


@dataclass(frozen=True, slots=True)
class Activity:
    """What workers did of one job type in one minute or hour."""

    begins_at: datetime
    """When the minute or hour begins, in UTC, by the store's clock."""
    seconds: int
    """60 for a minute, 3,600 for an hour."""
    type: str
    """The name of the job type; empty for a sum over all types."""
    worker: str | None = None
    """The id of the worker; None for a sum over all workers."""
    started: int = 0
    """Attempts whose handler began."""
    completed: int = 0
    continued: int = 0
    retried: int = 0
    """Attempts that failed, or asked for it, and whose job is tried again."""
    failed: int = 0
    """Attempts that failed, and whose job failed with them."""
    cancelled: int = 0
    """Attempts whose handler cancelled the chain; not what clients cancelled."""
    interrupted: int = 0
    """Attempts that a stopping worker ended, or whose lease was over before they began."""
    waiting: int = 0
    """Attempts that ended to wait for other chains."""
    rejected: int = 0
    """Attempts whose finish was rejected, since the lease was lost."""
    reaped: int = 0
    """Expired leases that these workers turned into failed attempts, of any worker."""
    snoozed: int = 0
    """Attempts that ended to go on later: they were snoozed, or sleep."""
    wait: Histogram = Histogram()
    """Seconds from when jobs were due to their claim, of the attempts that started."""
    run: Histogram = Histogram()
    """Seconds that handlers ran, of the attempts whose finish was written."""

    @classmethod
    def of(cls, begins_at: datetime, seconds: int, type: str, worker: str | None, numbers: Sequence[int]) -> Activity:
        """Return the activity whose counts and buckets are these :data:`NUMBERS`."""
        return cls(
            begins_at,
            seconds,
            type,
            worker,
            **dict(zip(COUNTS, numbers, strict=False)),
            wait=Histogram(_trimmed(numbers[WAIT_BEGINS:RUN_BEGINS])),
            run=Histogram(_trimmed(numbers[RUN_BEGINS:])),
        )

    @property
    def counts(self) -> tuple[int, ...]:
        """The counts, in the order of :data:`COUNTS`."""
        return tuple([getattr(self, name) for name in COUNTS])

    @property
    def numbers(self) -> list[int]:
        """Counts and buckets as one list of :data:`NUMBERS`."""
        return [*self.counts, *_filled(self.wait.buckets), *_filled(self.run.buckets)]


def _trimmed(buckets: Sequence[int]) -> tuple[int, ...]:
    end = len(buckets)
    while end and not buckets[end - 1]:
        end -= 1
    return tuple(buckets[:end])


def _filled(buckets: Sequence[int]) -> list[int]:
    return [*buckets, *[0] * (BUCKETS - len(buckets))]


def shown_numbers(numbers: Sequence[int]) -> str:
    """Return :data:`NUMBERS` as text: ``index:number`` of those that are not 0, such as ``0:5 1:5 13:5 39:5``."""
    return " ".join([f"{index}:{number}" for index, number in enumerate(numbers) if number])


def numbers_of(text: str) -> list[int]:
    """Return the :data:`NUMBERS` that a text of :func:`shown_numbers` has."""
    numbers = [0] * NUMBERS
    for part in text.split():
        index, _, number = part.partition(":")
        numbers[int(index)] = int(number)
    return numbers


Place: TypeAlias = tuple[datetime, int, str, str | None]
"""Begin, seconds, type and worker of an activity."""


def summed(found: Iterable[Activity], place: Callable[[Activity], Place]) -> list[Activity]:
    """Return the sums of the activities of each place, by begin, type and worker."""
    sums: dict[Place, list[int]] = {}
    for one in found:
        numbers, at = one.numbers, place(one)
        known = sums.get(at)
        sums[at] = numbers if known is None else [a + b for a, b in zip(known, numbers, strict=True)]
    ordered = sorted(sums.items(), key=lambda item: (item[0][0], item[0][2], item[0][3] or ""))
    return [Activity.of(*at, numbers) for at, numbers in ordered]


@dataclass(frozen=True, slots=True)
class ActivityReport:
    """What one worker counted and the store has not confirmed.

    It is sent again, the same, until the store has confirmed it; the store adds it once.
    """

    number: int
    """Each report of a worker has a higher one."""
    minutes: Sequence[Activity]
    """One for each minute and job type."""


@dataclass(frozen=True, slots=True)
class ActivityFilter:
    """Which activity is read."""

    since: datetime
    """Only minutes and hours that end after this time."""
    until: datetime | None = None
    """Only those that begin before this time."""
    types: tuple[str, ...] | None = None
    by: Period = "minute"
    """``hour`` adds minutes up to hours."""
    per_worker: bool = False
    per_type: bool = True
    workers: tuple[str, ...] | None = None

    def selects(self, one: Activity) -> bool:
        """Return whether it is of these types and workers."""
        return (self.types is None or one.type in self.types) and (self.workers is None or one.worker in self.workers)

    def place(self, one: Activity) -> Place:
        """Return where an activity belongs in the answer."""
        begins_at, seconds = one.begins_at, one.seconds
        if self.by == "hour" and seconds == MINUTE:
            begins_at, seconds = begins_at.replace(minute=0), HOUR
        return begins_at, seconds, one.type if self.per_type else "", one.worker if self.per_worker else None


@dataclass(frozen=True, slots=True)
class ActivityMaintenance:
    """What one round of maintenance did to the activity of a store."""

    folded: int = 0
    """Rows of minutes that were added up to hours."""
    dropped: int = 0
    """Rows of hours that were dropped."""
    more: bool = False
    """Whether there may be more to do at once."""
