"""When a job may first run: after a pause, or at a time, by the clock of the store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from queuert.errors import ConfigurationError
from queuert.policies import as_given


@dataclass(frozen=True, slots=True)
class RunAt:
    """The first moment at which a job may run: exactly one of ``delay`` (seconds) and ``moment`` (UTC) is set.

    A moment in the past means now. :func:`after` and :func:`at` make it.

        >>> after(minutes=5).delay
        300.0
    """

    delay: float | None = None
    moment: datetime | None = None


def not_a_run_at(given: object) -> ConfigurationError:
    """Return the error of something else that was passed as ``run_at``."""
    advice = "at(moment)" if isinstance(given, datetime) else "after(seconds=..., minutes=...)"
    return ConfigurationError(f"run_at must be after(...) or at(...), got {given!r}; write {advice}")


_LONGEST = timedelta(days=365 * 100)


def after(
    delay: timedelta | None = None, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
) -> RunAt:
    """Run the job this long after the start is written, by the clock of the store.

    Raises:
        ConfigurationError: the pause is negative or longer than a hundred years, or ``delay`` is no timedelta.

    Example:
        >>> after(minutes=5).delay
        300.0
    """
    if delay is not None and not isinstance(delay, timedelta):
        raise ConfigurationError(f"delay of after() must be a timedelta, got {delay!r}; write after(seconds={delay!r})")
    try:
        total = (delay or timedelta()) + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except (OverflowError, ValueError):  # Not a number, infinite, or more than a timedelta holds.
        total = timedelta.max
    if not timedelta() <= total <= _LONGEST:
        given = {"delay": delay, "days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
        shown = ", ".join(f"{name}={as_given(value)}" for name, value in given.items() if value)
        raise ConfigurationError(f"the pause of after() must be between 0 and a hundred years, got {shown}")
    return RunAt(delay=total.total_seconds())


def at(moment: datetime) -> RunAt:
    """Run the job at a moment, or at once if the moment has passed.

    Raises:
        ConfigurationError: the moment has no time zone, so it would mean different times on different machines; or it
            is not between the years 1 and 9999 in UTC.

    Example:
        >>> from datetime import UTC, datetime
        >>> at(datetime(2030, 1, 1, tzinfo=UTC)).moment
        datetime.datetime(2030, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)
    """
    if moment.tzinfo is None:
        raise ConfigurationError(
            f"the moment of at() must have a time zone, got {moment.isoformat()}; write datetime(..., tzinfo=UTC)"
        )
    return RunAt(moment=in_utc(moment, "the moment of at()"))


def in_utc(moment: datetime, name: str) -> datetime:
    """Return a time, which has a time zone, in UTC.

    Raises:
        ConfigurationError: its year is before 1 or after 9999 in UTC.
    """
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ConfigurationError(
            f"{name} must be between the years 1 and 9999 in UTC, got {moment.isoformat()}"
        ) from None
