"""Recurring schedules, and the arithmetic of their ticks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from queuert.errors import ConfigurationError
from queuert.job_types import JobType, not_a_job_type
from queuert.payloads import check_text

_LONGEST = 256
"""The most characters of a cron expression, and of a time zone."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MAX_CATCH_UP = 1_000
"""The most missed ticks for which ``MissedRuns.ALL`` starts chains."""


class MissedRuns(StrEnum):
    """What happens to ticks that passed while no worker was running.

    >>> MissedRuns("skip") is MissedRuns.SKIP
    True
    """

    ONCE = "once"
    """One chain is started for all of them, with the id of the latest."""
    SKIP = "skip"
    """No chain is started. A tick that is less than a minute late is not missed."""
    ALL = "all"
    """A chain is started for each of them, at most for the latest 1,000."""


class RecurringSchedule:
    """Starts a chain at each tick, once per tick whatever the number of workers.

    The chain of a tick has the id ``<name>@<tick in UTC>``, so that no tick is started twice. Store the schedule with
    ``client.put_schedules``, or pass it to the worker, which stores it when it starts.

    Args:
        name: the name; storing another schedule of this name replaces it. At most 480 characters.
        job_type: the job type of each chain's first job.
        input: the input of each chain's first job.
        cron: five fields (minute, hour, day, month, weekday) as in Debian's cron, in ``time_zone``. Times that a
            change of clocks skips run at the first moment after it; times that it repeats run once. If the minute or
            the hour begins with ``*``, ticks follow elapsed time: none is skipped or moved, and a repeated hour has its
            ticks twice.
        every: instead of ``cron``: an interval in seconds (or a timedelta), from a second to 366 days; ticks are its
            multiples since 1970, in UTC.
        time_zone: an IANA name.
        missed: what happens to ticks that passed while no worker was running.
        priority: the priority of the jobs.
        limit_key: the limit key of the jobs.

    Raises:
        ConfigurationError: not exactly one of ``cron`` and ``every`` is set, the interval is out of range, or the cron
            expression or time zone is unknown or longer than 256 characters.
        InvalidIdentifierError: the name or the limit key cannot be stored, or is too long.
        PayloadError: the input cannot be stored.

    Example:
        >>> from queuert import JobType
        >>> report = JobType("report", input=str, output=int)
        >>> RecurringSchedule("nightly", report, "all", cron="0 3 * * *", time_zone="Europe/Berlin").missed.value
        'once'
    """

    def __init__(
        self,
        name: str,
        job_type: JobType[Any, Any],
        input: Any,
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        time_zone: str = "UTC",
        missed: MissedRuns | str = MissedRuns.ONCE,
        priority: int = 0,
        limit_key: str | None = None,
    ) -> None:
        self.name = _checked_name(name)
        if not isinstance(job_type, JobType):
            raise not_a_job_type(job_type)
        self.job_type = job_type
        self.input_text = job_type.encode_input(input)
        self.spec = TickSpec(cron=cron, every=_seconds(every), time_zone=time_zone)
        try:
            self.missed = MissedRuns(missed)
        except ValueError:
            raise ConfigurationError(f"missed must be 'once', 'skip' or 'all', got {missed!r}") from None
        self.priority = priority
        self.limit_key = None if limit_key is None else check_text(limit_key, what="limit key")

    def __repr__(self) -> str:
        return f"RecurringSchedule({self.name!r}, {self.job_type.name!r}, {self.spec})"


def _checked_name(name: str) -> str:
    checked = check_text(name, what="schedule name", max_chars=480)
    # The longest possible tick, so that the ids of all chains are valid ids.
    check_text(tick_id(checked, datetime.max.replace(tzinfo=UTC)), what="id of the schedule's chains")
    return checked


def tick_id(name: str, tick: datetime) -> str:
    """Return the id of a tick's chain.

    Example:
        >>> tick_id("nightly", datetime(2030, 1, 31, 3, tzinfo=UTC))
        'nightly@2030-01-31T03:00:00Z'
    """
    return f"{name}@{tick.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"


def tick_of(chain_id: str) -> datetime:
    """Return the tick of a chain with an id of :func:`tick_id`.

    Raises:
        ValueError: the id is not of that form.
    """
    return datetime.fromisoformat(chain_id.rpartition("@")[2])


@dataclass(frozen=True, slots=True)
class Tick:
    """The tick of a schedule that started a chain.

    Attributes:
        schedule: the name of the schedule.
        at: the time of the tick, UTC; not the time at which a worker came to it.
    """

    schedule: str
    at: datetime


def tick_in(chain_id: str) -> Tick | None:
    """Return the tick of which this is the chain's id; None if it is another id.

    Example:
        >>> tick_in("nightly@2030-01-31T03:00:00Z").schedule
        'nightly'
        >>> tick_in("nightly") is None
        True
    """
    name = chain_id.rpartition("@")[0]
    try:
        at = tick_of(chain_id)
    except ValueError:
        return None
    return Tick(name, at) if at.tzinfo is not None and tick_id(name, at) == chain_id else None


def notification_key(job_type: str) -> str:
    """Return the key of the notification that schedules of a job type have changed; it wakes no claimer.

    Example:
        >>> notification_key("report")
        'schedules of report'
    """
    return f"schedules of {job_type}"


def _seconds(every: float | timedelta | None) -> float | None:
    if isinstance(every, timedelta):
        return every.total_seconds()
    return None if every is None else float(every)


class TickSpec:
    """The ticks of a schedule: by cron expression, or at an interval. Pure arithmetic.

    Raises:
        ConfigurationError: see :class:`RecurringSchedule`.
    """

    __slots__ = ("cron", "every", "time_zone")

    def __init__(self, *, cron: str | None, every: float | None, time_zone: str) -> None:
        if (cron is None) == (every is None):
            raise ConfigurationError("a schedule must have exactly one of cron= and every=")
        if every is not None and not 1 <= every <= 86_400 * 366:
            raise ConfigurationError(f"every must be between a second and 366 days, got {every} s")
        for what, text in (("cron expression", cron), ("time zone", time_zone)):
            # Parsing a list of a million minutes would block the event loop for seconds.
            if text is not None and len(text) > _LONGEST:
                raise ConfigurationError(f"{what} must have at most {_LONGEST} characters, got {len(text)}")
        self.cron = cron
        self.every = every
        self.time_zone = time_zone
        try:
            zone = ZoneInfo(time_zone)
        except (OSError, LookupError, ValueError, TypeError):
            raise ConfigurationError(f"time zone {time_zone!r} is not known here: use an IANA name") from None
        if cron is not None:
            try:
                next(iter(CronSim(cron, datetime(2024, 1, 1, tzinfo=zone))))
            except (CronSimError, StopIteration) as error:
                reason = str(error) or "it matches no time"
                raise ConfigurationError(f"cron expression {cron!r} is not valid: {reason}") from None

    def __repr__(self) -> str:
        return f"every {self.every:g} s" if self.cron is None else f"{self.cron!r} {self.time_zone}"

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Return the ticks later than ``moment``, in order, UTC. Those of a cron expression may end after 50 years."""
        return self._every_after(moment) if self.cron is None else self._cron_after(self.cron, moment)

    def _every_after(self, moment: datetime) -> Iterator[datetime]:
        assert self.every is not None
        # Whole microseconds: a float would lead to the same tick again, one microsecond off.
        pause = timedelta(seconds=self.every)
        number = (moment - _EPOCH) // pause
        while True:
            number += 1
            yield _EPOCH + number * pause

    def _cron_after(self, cron: str, moment: datetime) -> Iterator[datetime]:
        last = moment.astimezone(UTC)
        for local in CronSim(cron, moment.astimezone(ZoneInfo(self.time_zone))):
            tick = local.astimezone(UTC)
            # If CronSim starts in the second half of a repeated hour, it yields times of the first half.
            if tick > last:
                yield tick
                last = tick

    def about_ticks_before(self, moment: datetime, count: int) -> datetime:
        """Return a time about ``count`` ticks before ``moment``, from which to count after a long outage."""
        if self.every is not None:
            return moment - timedelta(seconds=self.every * count)
        assert self.cron is not None
        back = CronSim(self.cron, moment.astimezone(ZoneInfo(self.time_zone)), reverse=True)
        return min(islice(back, count + 1), default=moment).astimezone(UTC)

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first tick later than ``moment``, UTC; None if there is none."""
        return next(self.after(moment), None)


LATENESS = timedelta(minutes=1)
"""A tick that is not later than this is on time for ``MissedRuns.SKIP``."""


def ticks_to_run(
    spec: TickSpec, missed: MissedRuns, due: datetime, now: datetime
) -> tuple[list[datetime], datetime | None]:
    """Return the ticks from ``due`` to ``now`` that get a chain, and the next tick after them."""
    upcoming = spec.next_after(now)
    passed = [due, *_until(spec, max(due, spec.about_ticks_before(now, MAX_CATCH_UP)), now)][-MAX_CATCH_UP:]
    if missed is MissedRuns.ALL:
        return passed, upcoming
    late = now - passed[-1] > LATENESS
    return ([] if missed is MissedRuns.SKIP and late else passed[-1:]), upcoming


def _until(spec: TickSpec, since: datetime, now: datetime) -> Iterator[datetime]:
    return takewhile(lambda tick: tick <= now, spec.after(since))


def earlier_tick(spec: TickSpec, next_at: datetime, last_at: datetime | None, now: datetime) -> datetime | None:
    """Return the tick to go back to if ``next_at`` was written by a clock that was ahead; None if it is right.

    If the latest tick that got a chain is ahead by less than :data:`LATENESS`, the clock was only corrected a little
    and will pass that tick soon. Going back would start the tick twice if its chain has been deleted since.
    """
    upcoming = spec.next_after(now)
    if upcoming is None or upcoming >= next_at:
        return None
    corrected_a_little = last_at is not None and upcoming <= last_at <= now + LATENESS
    return None if corrected_a_little else upcoming
