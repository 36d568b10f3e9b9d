"""Recurring schedules, and the arithmetic of their ticks."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from queuert.attributes import GivenAttributes, checked_attributes
from queuert.errors import ConfigurationError, ScheduleOwnerError
from queuert.job_types import JobType, not_a_job_type
from queuert.policies import as_given, checked_ttl
from queuert.run_at import in_utc
from queuert.texts import check_text

_LONGEST = 256
"""The most characters of a cron expression, and of a time zone."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST = datetime(1, 1, 3, tzinfo=UTC)
"""From here on all moments, and those just before them, can be told in every time zone."""

_MICROSECOND = timedelta(microseconds=1)

MAX_CATCH_UP = 1_000
"""The most ticks for which ``MissedRuns.ALL``, or one backfill, starts chains."""

MAX_JITTER = 86_400.0
"""The most seconds of a jitter."""

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""Names of cron expressions, as in Debian's cron."""


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


class Overlap(StrEnum):
    """What happens at a tick while the chain that the schedule started last is open.

    >>> Overlap("skip") is Overlap.SKIP
    True
    """

    ALLOW = "allow"
    """The chain of the tick is started beside it."""
    SKIP = "skip"
    """No chain is started."""
    CANCEL = "cancel"
    """The open chain is cancelled, then the chain of the tick is started."""


class RecurringSchedule:
    """Starts a chain at each tick, once per tick whatever the number of workers.

    The chain of a tick has the id ``<name>@<tick in UTC>``, so that no tick is started twice. Store the schedule with
    ``client.put_schedules``, or pass it to the processors or the worker, which stores it when it starts.

    Args:
        name: the name; storing another schedule of this name replaces it. At most 480 characters.
        job_type: the job type of each chain's first job.
        input: the input of each chain's first job.
        cron: five fields (minute, hour, day, month, weekday) as in Debian's cron, in ``time_zone``, or ``@hourly``,
            ``@daily``, ``@weekly`` (on Sundays), ``@monthly`` or ``@yearly``. Times that a change of clocks skips run
            at the first moment after it; times that it repeats run once. If the minute or the hour begins with ``*``,
            ticks follow elapsed time: none is skipped or moved, and a repeated hour has its ticks twice.
        every: instead of ``cron``: an interval in seconds (or a timedelta), from a second to 366 days; ticks are its
            multiples since 1970, in UTC.
        time_zone: an IANA name.
        missed: what happens to ticks that passed while no worker was running.
        overlap: what happens at a tick while the chain that the schedule started last is open: ``"allow"`` starts
            another one beside it, ``"skip"`` none, ``"cancel"`` cancels it first. The latter two start one chain at a
            time, so they exclude ``missed="all"``.
        jitter: the job of a tick is due up to so many seconds (or a timedelta) after the tick, at most a day. How many
            follows from the name and the tick, so it is the same for all workers.
        starts_at: an aware datetime; there is no tick before it.
        ends_at: an aware datetime; there is no tick after it.
        priority: the priority of the jobs.
        limit_key: the limit key of the jobs.
        attributes: the attributes of the chains, as those of ``start_chain``.
        result_ttl: seconds or a timedelta that the chains are kept after they closed, as that of ``start_chain``.

    Raises:
        ConfigurationError: not exactly one of ``cron`` and ``every`` is set; a number is out of range; the cron
            expression or time zone is unknown or longer than 256 characters; a datetime has no time zone, or
            ``ends_at`` is before ``starts_at``; or ``overlap`` excludes ``missed``.
        InvalidIdentifierError: the name, the limit key or an attribute cannot be stored, or is too long.
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
        overlap: Overlap | str = Overlap.ALLOW,
        jitter: float | timedelta = 0.0,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        priority: int = 0,
        limit_key: str | None = None,
        attributes: GivenAttributes | None = None,
        result_ttl: float | timedelta | None = None,
    ) -> None:
        self.name = _checked_name(name)
        if not isinstance(job_type, JobType):
            raise not_a_job_type(job_type)
        self.job_type = job_type
        self.input_text = job_type.encode_input(input)
        self.spec = TickSpec(
            cron=cron, every=_seconds(every), time_zone=time_zone, starts_at=starts_at, ends_at=ends_at
        )
        try:
            self.missed = MissedRuns(missed)
        except ValueError:
            raise ConfigurationError(f"missed must be 'once', 'skip' or 'all', got {missed!r}") from None
        try:
            self.overlap = Overlap(overlap)
        except ValueError:
            raise ConfigurationError(f"overlap must be 'allow', 'skip' or 'cancel', got {overlap!r}") from None
        if self.missed is MissedRuns.ALL and self.overlap is not Overlap.ALLOW:
            raise ConfigurationError(
                f"missed='all' may start several chains at once, so overlap must be 'allow', got {self.overlap.value!r}"
            )
        self.jitter = _seconds(jitter) or 0.0
        if not 0 <= self.jitter <= MAX_JITTER:
            raise ConfigurationError(f"jitter must be from 0 to {MAX_JITTER:,.0f} seconds, got {as_given(jitter)}")
        self.priority = priority
        self.limit_key = None if limit_key is None else check_text(limit_key, what="limit key")
        self.attributes = checked_attributes(attributes)
        self.result_ttl = None if result_ttl is None else checked_ttl("result_ttl", result_ttl)

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


def jitter_of(name: str, tick: datetime, jitter: float) -> timedelta:
    """Return how long after a tick its job is due: at least 0 and less than ``jitter`` seconds, the same everywhere.

    Example:
        >>> jitter_of("nightly", datetime(2030, 1, 31, 3, tzinfo=UTC), 600.0)
        datetime.timedelta(seconds=545, microseconds=407689)
    """
    digest = hashlib.sha256(tick_id(name, tick).encode()).digest()
    return timedelta(seconds=jitter * int.from_bytes(digest[:6], "big") / 2**48)


def notification_key(job_type: str) -> str:
    """Return the key of the notification that schedules of a job type have changed; it wakes no claimer.

    Example:
        >>> notification_key("report")
        'schedules of report'
    """
    return f"schedules of {job_type}"


def check_owners(given: Mapping[str, str | None], stored: Iterable[tuple[str, str | None]]) -> None:
    """Check that schedules, by name, belong to the owners that store them.

    Raises:
        ScheduleOwnerError: a stored one has another owner than the given one.
    """
    for name, owner in stored:
        if owner != given[name]:
            raise ScheduleOwnerError(name, owner, given[name])


def _seconds(every: float | timedelta | None) -> float | None:
    if isinstance(every, timedelta):
        return every.total_seconds()
    return None if every is None else float(every)


def checked_times(since: datetime | None, until: datetime | None) -> tuple[datetime | None, datetime | None]:
    """Return ``starts_at`` and ``ends_at`` in UTC.

    Raises:
        ConfigurationError: one has no time zone, or they are in the wrong order.
    """
    since, until = since and checked_moment("starts_at", since), until and checked_moment("ends_at", until)
    if since is not None and until is not None and until < since:
        raise ConfigurationError(f"ends_at must not be before starts_at, got {until} and {since}")
    return since, until


def _check_cron(cron: str, zone: ZoneInfo) -> None:
    fields = len(cron.split())
    if cron.strip().startswith("@"):
        raise ConfigurationError(f"cron expression must be five fields or one of {', '.join(ALIASES)}, got {cron!r}")
    if fields != 5:
        advice = "; for intervals of seconds use every=" if fields == 6 else ""
        raise ConfigurationError(
            f"cron expression must have five fields (minute, hour, day, month, weekday), got {fields} in "
            f"{cron!r}{advice}"
        )
    try:
        next(iter(CronSim(cron, datetime(2024, 1, 1, tzinfo=zone))))
    except (CronSimError, StopIteration) as error:
        reason = str(error) or "it matches no time"
        raise ConfigurationError(f"cron expression {cron!r} is not valid: {reason}") from None


class TickSpec:
    """The ticks of a schedule: by cron expression, or at an interval. Pure arithmetic.

    Raises:
        ConfigurationError: see :class:`RecurringSchedule`.
    """

    __slots__ = ("cron", "ends_at", "every", "starts_at", "time_zone")

    def __init__(
        self,
        *,
        cron: str | None,
        every: float | None,
        time_zone: str,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
    ) -> None:
        if (cron is None) == (every is None):
            raise ConfigurationError("a schedule must have exactly one of cron= and every=")
        if every is not None and not 1 <= every <= 86_400 * 366:
            raise ConfigurationError(f"every must be between a second and 366 days, got {every} s")
        for what, text in (("cron expression", cron), ("time zone", time_zone)):
            # Parsing a list of a million minutes would block the event loop for seconds.
            if text is not None and len(text) > _LONGEST:
                raise ConfigurationError(f"{what} must have at most {_LONGEST} characters, got {len(text)}")
        self.cron = None if cron is None else ALIASES.get(cron.strip().lower(), cron)
        self.every = every
        self.time_zone = time_zone
        self.starts_at, self.ends_at = checked_times(starts_at, ends_at)
        try:
            zone = ZoneInfo(time_zone)
        except (OSError, LookupError, ValueError, TypeError):
            raise ConfigurationError(f"time zone {time_zone!r} is not known here: use an IANA name") from None
        if self.cron is not None:
            _check_cron(self.cron, zone)

    def __repr__(self) -> str:
        return f"every {self.every:g} s" if self.cron is None else f"{self.cron!r} {self.time_zone}"

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Return the ticks later than ``moment``, in order, UTC. Those of a cron expression may end after 50 years."""
        if self.starts_at is not None:
            moment = max(moment, self.starts_at - _MICROSECOND)
        ticks = self._every_after(moment) if self.cron is None else self._cron_after(self.cron, moment)
        ends_at = self.ends_at
        return ticks if ends_at is None else takewhile(lambda tick: tick <= ends_at, ticks)

    def _every_after(self, moment: datetime) -> Iterator[datetime]:
        assert self.every is not None
        # Whole microseconds: a float would lead to the same tick again, one microsecond off.
        pause = timedelta(seconds=self.every)
        number = (moment - _EPOCH) // pause
        while True:
            number += 1
            yield _EPOCH + number * pause

    def _cron_after(self, cron: str, moment: datetime) -> Iterator[datetime]:
        zone = ZoneInfo(self.time_zone)
        local_times = CronSim(cron, moment.astimezone(zone))
        if local_times.fixup_tz is None:
            yield from _all_local_times(cron, moment, zone)
            return
        last = moment.astimezone(UTC)
        for local in local_times:
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

    def has(self, moment: datetime) -> bool:
        """Whether there is a tick at this moment."""
        try:
            return self.next_after(moment - _MICROSECOND) == moment
        except (OverflowError, ValueError):
            # At the ends of the calendar, where nothing can be counted.
            return False

    def beside(self, moment: datetime) -> datetime:
        """Return this moment, or if that is a tick the microsecond after it, which is none."""
        return moment + _MICROSECOND if self.has(moment) else moment


_LONGEST_CHANGE = timedelta(hours=3)
"""By more no zone sets its clocks back."""


def _all_local_times(cron: str, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Return when a clock of the zone shows the times of an expression of intervals, those that it shows twice, twice.

    CronSim looks at each real hour from the last one, so where clocks change by half an hour it would pass over times.
    It is only asked which times of a calendar without changes fit.
    """
    local = moment.astimezone(zone)
    begin = local.replace(tzinfo=None)
    if (moment + _LONGEST_CHANGE).astimezone(zone).utcoffset() != local.utcoffset():
        # If clocks are set back, they will show again what they have shown already.
        begin -= _LONGEST_CHANGE
    shown_again: deque[datetime] = deque()
    for wall in CronSim(cron, begin):
        first = wall.replace(tzinfo=zone).astimezone(UTC)
        while shown_again and shown_again[0] < first:
            if (again := shown_again.popleft()) > moment:
                yield again
        if first.astimezone(zone).replace(tzinfo=None, fold=0) != wall:
            continue  # Clocks were set forward over it.
        if first > moment:
            yield first
        second = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
        if second != first:
            shown_again.append(second)


LATENESS = timedelta(minutes=1)
"""A tick that is not later than this is on time for ``MissedRuns.SKIP``."""


def ticks_to_run(
    spec: TickSpec, missed: MissedRuns, due: datetime, now: datetime
) -> tuple[list[datetime], datetime | None]:
    """Return the ticks from ``due`` to ``now`` that get a chain, and the next tick after them."""
    upcoming = spec.next_after(now)
    moved = _moved_by(spec, due)
    since = max(due, spec.about_ticks_before(now, MAX_CATCH_UP)) + moved
    passed = [due, *(tick - moved for tick in _until(spec, since, now + moved))][-MAX_CATCH_UP:]
    if missed is MissedRuns.ALL:
        return passed, upcoming
    late = now - passed[-1] > LATENESS
    return ([] if missed is MissedRuns.SKIP and late else passed[-1:]), upcoming


def _moved_by(spec: TickSpec, due: datetime) -> timedelta:
    """How much earlier a due tick is than the next one of the schedule, if a test's queue has moved it; else nothing.

    Those that follow are moved with it: as they are, they may be ticks that had a chain before the queue moved its
    times, whose ids they would have. A moved tick is never whole seconds off (``queuert/testing/clock.py``); one that
    is off since the rules of a time zone have changed always is, and the next ones follow the new rules.
    """
    tick = spec.next_after(due - _MICROSECOND)
    moved = timedelta() if tick is None else tick - due
    return moved if moved % timedelta(seconds=1) else timedelta()


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


def checked_moment(name: str, moment: datetime) -> datetime:
    """Return a moment that a caller gives, in UTC.

    Raises:
        ConfigurationError: it has no time zone, or its year is before 1 or after 9999 in UTC.
    """
    if moment.tzinfo is None:
        raise ConfigurationError(f"{name} must be a datetime with a time zone, got {moment!r}: add tzinfo=UTC")
    return in_utc(moment, name)


def checked_range(since: datetime, before: datetime) -> tuple[datetime, datetime]:
    """Return the range of a backfill, in UTC.

    Raises:
        ConfigurationError: one has no time zone or is outside of the calendar, or they are in the wrong order.
    """
    since, before = checked_moment("since", since), checked_moment("before", before)
    if before < since:
        raise ConfigurationError(f"before must not be earlier than since, got {before} and {since}")
    return since, before


def ticks_between(spec: TickSpec, since: datetime, before: datetime) -> list[datetime]:
    """Return the ticks from ``since`` until before ``before``, for a backfill.

    Raises:
        ConfigurationError: there are more than :data:`MAX_CATCH_UP`.
    """
    after = max(since, _EARLIEST) - _MICROSECOND
    ticks = list(islice(takewhile(lambda tick: tick < before, spec.after(after)), MAX_CATCH_UP + 1))
    if len(ticks) > MAX_CATCH_UP:
        raise ConfigurationError(f"a backfill may have at most {MAX_CATCH_UP:,} ticks: give a shorter range")
    return ticks
