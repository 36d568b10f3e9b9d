"""Recurring schedules: when a chain is started again and again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from queuert.errors import ConfigurationError
from queuert.job_types import JobType
from queuert.payloads import check_text

_LONGEST = 256
"""Characters of a cron expression, and of a time zone."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MAX_CATCH_UP = 1_000
"""Missed ticks that ``MissedRuns.ALL`` makes up for, at most, in one go."""


class MissedRuns(StrEnum):
    """What becomes of ticks for which no worker was there."""

    ONCE = "once"
    """They are made up for by one chain, that of the latest of them."""
    SKIP = "skip"
    """They are left out; a tick that is less than a minute late is not missed."""
    ALL = "all"
    """Each gets its chain, the latest 1,000 of them at most."""


class RecurringSchedule:
    """A chain that is started at each tick of a schedule, once per tick whatever the number of workers.

    The chain of a tick has the id ``<name>@<tick in UTC>``, so that no tick can be started twice. Register it with
    ``client.put_schedules``, or give it to the worker, which does so when it starts.

    Args:
        name: identifies the schedule; putting another one of this name replaces it.
        job_type: the type of each chain's first job.
        input: its input.
        cron: five fields (minute, hour, day, month, weekday) as in Debian's cron, in ``time_zone``. Times that a
            change of clocks leaves out run at the first moment after it; times that it repeats run once. Where the
            minute or the hour begins with ``*``, ticks go on as time does: none is left out, none is moved, and a
            repeated hour has its ticks twice.
        every: instead of ``cron``: a pause in seconds (or a timedelta), at least a second; ticks are its multiples
            since 1970, in UTC.
        time_zone: an IANA name.
        missed: what becomes of ticks for which no worker was there.
        priority: of the jobs.
        limit_key: of the jobs.

    Raises:
        ConfigurationError: not exactly one of ``cron`` and ``every``, an expression or zone that does not exist, or is
            longer than 256 characters.
        InvalidIdentifierError: the name or the limit key cannot be stored, or the name is too long (480 characters).
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
        self.job_type = job_type
        self.input_text = job_type.encode_input(input)
        self.spec = TickSpec(cron=cron, every=_seconds(every), time_zone=time_zone)
        try:
            self.missed = MissedRuns(missed)
        except ValueError:
            raise ConfigurationError(f"missed={missed!r}: 'once', 'skip' or 'all'") from None
        self.priority = priority
        self.limit_key = None if limit_key is None else check_text(limit_key, what="limit key")

    def __repr__(self) -> str:
        return f"RecurringSchedule({self.name!r}, {self.job_type.name!r}, {self.spec})"


def _checked_name(name: str) -> str:
    checked = check_text(name, what="schedule name", max_chars=480)
    # Longer than any tick's, so that the ids of all chains can be given to the client.
    check_text(tick_id(checked, datetime.max.replace(tzinfo=UTC)), what="id of the schedule's chains")
    return checked


def tick_id(name: str, tick: datetime) -> str:
    """The id of a tick's chain.

    Example:
        >>> tick_id("nightly", datetime(2030, 1, 31, 3, tzinfo=UTC))
        'nightly@2030-01-31T03:00:00Z'
    """
    return f"{name}@{tick.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"


def tick_of(chain_id: str) -> datetime:
    """The tick that a chain of :func:`tick_id` belongs to.

    Raises:
        ValueError: the id is of another kind.
    """
    return datetime.fromisoformat(chain_id.rpartition("@")[2])


def notification_key(job_type: str) -> str:
    """The key of the notification that schedules of a job type were put; no claimer is woken by it.

    Example:
        >>> hint_key("report")
        'schedules of report'
    """
    return f"schedules of {job_type}"


def _seconds(every: float | timedelta | None) -> float | None:
    if isinstance(every, timedelta):
        return every.total_seconds()
    return None if every is None else float(every)


class TickSpec:
    """When a schedule ticks: by cron expression, or every so many seconds. Pure arithmetic.

    Raises:
        ConfigurationError: it makes no sense.
    """

    __slots__ = ("cron", "every", "time_zone")

    def __init__(self, *, cron: str | None, every: float | None, time_zone: str) -> None:
        if (cron is None) == (every is None):
            raise ConfigurationError("a schedule takes exactly one of cron= and every=")
        if every is not None and not 1 <= every <= 86_400 * 366:
            raise ConfigurationError(f"every={every} s: from a second to a year")
        for what, text in (("cron expression", cron), ("time zone", time_zone)):
            # A list of a million minutes takes seconds to read, of everybody's event loop.
            if text is not None and len(text) > _LONGEST:
                raise ConfigurationError(f"the {what} has {len(text)} characters; the limit is {_LONGEST}")
        self.cron = cron
        self.every = every
        self.time_zone = time_zone
        try:
            zone = ZoneInfo(time_zone)
        except (OSError, LookupError, ValueError, TypeError):
            raise ConfigurationError(f"time zone {time_zone!r} is not known here: give an IANA name") from None
        if cron is not None:
            try:
                next(iter(CronSim(cron, datetime(2024, 1, 1, tzinfo=zone))))
            except (CronSimError, StopIteration) as error:
                raise ConfigurationError(f"cron expression {cron!r}: {str(error) or 'it never comes'}") from None

    def __repr__(self) -> str:
        return f"every {self.every:g} s" if self.cron is None else f"{self.cron!r} {self.time_zone}"

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The ticks later than ``moment``, in order, UTC. A cron expression may run dry after 50 years."""
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
            # Begun in the second half of a repeated hour, it shows times of the first half.
            if tick > last:
                yield tick
                last = tick

    def about_ticks_before(self, moment: datetime, count: int) -> datetime:
        """A moment after which about ``count`` ticks come until ``moment``: where to begin, after a long outage."""
        if self.every is not None:
            return moment - timedelta(seconds=self.every * count)
        assert self.cron is not None
        back = CronSim(self.cron, moment.astimezone(ZoneInfo(self.time_zone)), reverse=True)
        return min(islice(back, count + 1), default=moment).astimezone(UTC)

    def next_after(self, moment: datetime) -> datetime | None:
        """The first tick later than ``moment``, UTC; None if it never comes again."""
        return next(self.after(moment), None)


LATENESS = timedelta(minutes=1)
"""A tick that is not later than this is on time for ``MissedRuns.SKIP``."""


def ticks_to_run(
    spec: TickSpec, missed: MissedRuns, due: datetime, now: datetime
) -> tuple[list[datetime], datetime | None]:
    """The ticks from ``due`` to ``now`` that get a chain, and the next one after them."""
    upcoming = spec.next_after(now)
    passed = [due, *_until(spec, max(due, spec.about_ticks_before(now, MAX_CATCH_UP)), now)][-MAX_CATCH_UP:]
    if missed is MissedRuns.ALL:
        return passed, upcoming
    late = now - passed[-1] > LATENESS
    return ([] if missed is MissedRuns.SKIP and late else passed[-1:]), upcoming


def _until(spec: TickSpec, since: datetime, now: datetime) -> Iterator[datetime]:
    return takewhile(lambda tick: tick <= now, spec.after(since))


def earlier_tick(spec: TickSpec, next_at: datetime, last_at: datetime | None, now: datetime) -> datetime | None:
    """The tick to go back to, where ``next_at`` was written by a clock that was ahead; None where it is right.

    If the latest tick that got a chain is ahead by less than :data:`LATENESS`, the clock was only corrected a little,
    and goes past that tick soon: to start it again would be to start it twice where its chain has been deleted since.
    """
    upcoming = spec.next_after(now)
    if upcoming is None or upcoming >= next_at:
        return None
    corrected_a_little = last_at is not None and upcoming <= last_at <= now + LATENESS
    return None if corrected_a_little else upcoming
