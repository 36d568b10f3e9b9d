"""When schedules tick, and which missed ticks are made up for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuert.errors import ConfigurationError, InvalidIdentifierError, PayloadError
from queuert.job_types import JobType
from queuert.schedules import (
    LATENESS,
    MAX_CATCH_UP,
    MissedRuns,
    RecurringSchedule,
    TickSpec,
    jitter_of,
    notification_key,
    tick_id,
    tick_of,
    ticks_between,
    ticks_to_run,
)

report = JobType("report", input=str, output=int)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)

SPRING = "2024-03-31"
AUTUMN = "2024-10-27"
"""Berlin's clocks go from 2:00 to 3:00, and from 3:00 back to 2:00: at 1:00 UTC."""


def cron(expression: str, zone: str = "Europe/Berlin") -> TickSpec:
    return TickSpec(cron=expression, every=None, time_zone=zone)


def every(seconds: float) -> TickSpec:
    return TickSpec(cron=None, every=seconds, time_zone="UTC")


def on(day: str, spec: TickSpec) -> list[str]:
    """The ticks of a day in Berlin, as times of UTC."""
    begin = datetime.fromisoformat(f"{day}T00:00:00+01:00").astimezone(UTC) - timedelta(hours=day == AUTUMN)
    end = begin + timedelta(hours={SPRING: 23, AUTUMN: 25}.get(day, 24))
    ticks = takewhile(lambda tick: tick < end, spec.after(begin - timedelta(microseconds=1)))
    return [f"{tick:%H:%M}" for tick in ticks]


# --- cron -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "day", "ticks"),
    [
        ("30 2 * * *", "2024-03-30", ["01:30"]),
        # Left out by the clocks: at the first moment after it, once, even if several times are left out.
        ("30 2 * * *", SPRING, ["01:00"]),
        ("15,45 2 * * *", SPRING, ["01:00"]),
        ("0 2 * * *", SPRING, ["01:00"]),
        ("0 3 * * *", SPRING, ["01:00"]),
        ("30 1-3 * * *", SPRING, ["00:30", "01:00", "01:30"]),
        # Repeated: the first time only.
        ("30 2 * * *", AUTUMN, ["00:30"]),
        ("15,45 2 * * *", AUTUMN, ["00:15", "00:45"]),
        ("30 1-3 * * *", AUTUMN, ["23:30", "00:30", "02:30"]),
        # What begins with a star goes on as time does.
        ("30 * * * *", SPRING, [f"{hour % 24:02}:30" for hour in range(23, 23 + 23)]),
        ("30 * * * *", AUTUMN, [f"{hour % 24:02}:30" for hour in range(22, 22 + 25)]),
        ("*/20 2 * * *", AUTUMN, ["00:00", "00:20", "00:40", "01:00", "01:20", "01:40"]),
        ("15 */2 * * *", SPRING, [f"{hour:02}:15" for hour in (23, *range(2, 22, 2))]),
    ],
)
def test_changes_of_clocks(expression: str, day: str, ticks: list[str]) -> None:
    assert on(day, cron(expression)) == ticks


@pytest.mark.parametrize(
    ("expression", "shows"),
    [
        ("0 */2 * * *", lambda clock: clock.hour % 2 == 0 and clock.minute == 0),
        ("5 */3 * * *", lambda clock: clock.hour % 3 == 0 and clock.minute == 5),
        ("*/20 * * * *", lambda clock: clock.minute % 20 == 0),
        ("*/7 2 * * *", lambda clock: clock.hour == 2 and clock.minute % 7 == 0),
    ],
)
@pytest.mark.parametrize("zone", ["Australia/Lord_Howe", "Europe/Berlin", "Antarctica/Troll"])
@pytest.mark.parametrize("day", ["2027-04-03", "2026-10-03", "2024-03-30", "2024-10-26"])
def test_clocks_that_change_by_half_an_hour_or_two(
    expression: str, shows: Callable[[datetime], bool], zone: str, day: str
) -> None:
    """An expression that begins with a star ticks whenever a clock of the zone shows a time of it."""
    begin = datetime.fromisoformat(f"{day}T00:00:00+00:00")
    minutes = [begin + timedelta(minutes=minute) for minute in range(1, 60 * 24 * 2)]
    ticks = takewhile(lambda tick: tick <= minutes[-1], cron(expression, zone).after(begin))
    assert list(ticks) == [minute for minute in minutes if shows(minute.astimezone(ZoneInfo(zone)))]


@pytest.mark.parametrize("expression", ["30 2 * * *", "*/30 * * * *", "*/20 1-3 * * *", "0 0 * * *", "5 2,3 * * *"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo"])
@pytest.mark.parametrize("day", ["2024-03-30", "2024-10-26", "2024-04-06", "2024-11-02", "2018-11-03"])
def test_from_anywhere_the_same_ticks(expression: str, zone: str, day: str) -> None:
    """Wherever one begins, in a repeated hour too, the next tick is later, and the one that all others see."""
    begin = datetime.fromisoformat(f"{day}T00:00:00+00:00")
    spec = cron(expression, zone)
    ticks = list(takewhile(lambda tick: tick < begin + timedelta(days=4), spec.after(begin)))
    assert all(earlier < later for earlier, later in pairwise(ticks))
    for minutes in range(0, 60 * 24 * 2, 11):
        moment = begin + timedelta(minutes=minutes, seconds=7)
        assert spec.next_after(moment) == next(tick for tick in ticks if tick > moment)


def test_cron_of_weekdays_and_months() -> None:
    begin = datetime(2024, 2, 27, tzinfo=UTC)
    assert [f"{tick:%d.%m}" for tick in islice(cron("0 12 29 2 *", "UTC").after(begin), 1)] == ["29.02"]
    assert [f"{tick:%d.%m}" for tick in islice(cron("0 12 * * 5#1", "UTC").after(begin), 2)] == ["01.03", "05.04"]
    assert [f"{tick:%d.%m}" for tick in islice(cron("0 12 L * *", "UTC").after(begin), 2)] == ["29.02", "31.03"]


# --- every ------------------------------------------------------------------------------------------------------------


def test_every_ticks_at_multiples() -> None:
    assert list(islice(every(90).after(NOON), 3)) == [NOON + timedelta(seconds=90 * n) for n in (1, 2, 3)]
    assert every(3600).next_after(NOON + timedelta(minutes=1)) == NOON + timedelta(hours=1)


@settings(max_examples=200)
@given(
    seconds=st.floats(1, 86_400 * 366),
    moment=st.datetimes(datetime(1990, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
)
def test_every_goes_on_from_its_own_ticks(seconds: float, moment: datetime) -> None:
    """From a tick, the next one is a whole pause away, whatever floats make of it."""
    spec = every(seconds)
    first = spec.next_after(moment)
    assert first is not None
    assert timedelta(0) < first - moment <= timedelta(seconds=seconds)
    assert spec.next_after(first) == first + timedelta(seconds=seconds)


# --- what is not valid ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"cron": "* * * * *", "every": 60},
        {"cron": "* * * *"},
        {"cron": "* * * * * *  *"},
        {"cron": "61 * * * *"},
        {"cron": "0 0 30 2 *"},
        {"cron": "nonsense"},
        {"cron": "0 3 * * *", "time_zone": "Mars/Olympus"},
        {"cron": "0 3 * * *", "time_zone": ""},
        {"cron": "0 3 * * *", "time_zone": "../etc/passwd"},
        {"every": 0.5},
        {"every": -1},
        {"every": float("nan")},
        {"every": 86_400 * 400},
        {"every": timedelta(milliseconds=10)},
        {"every": 60, "missed": "never"},
        {"every": 60, "overlap": "never"},
        {"every": 60, "overlap": "skip", "missed": "all"},
        {"every": 60, "overlap": "cancel", "missed": "all"},
        {"every": 60, "jitter": -1},
        {"every": 60, "jitter": 86_401},
        {"every": 60, "jitter": float("nan")},
        {"every": 60, "starts_at": NOON.replace(tzinfo=None)},
        {"every": 60, "ends_at": NOON.replace(tzinfo=None)},
        {"every": 60, "starts_at": NOON, "ends_at": NOON - timedelta(seconds=1)},
        {"every": 60, "result_ttl": 0},
        {"every": 60, "attributes": {"a": None}},
    ],
)
def test_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RecurringSchedule("nightly", report, "all", **wrong)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("*/5 * * * * *", r"must have five fields \(minute, hour, day, month, weekday\), got 6 .* use every="),
        ("* * * *", "must have five fields .* got 4 in"),
        ("@reboot", "must be five fields or one of @hourly, @daily, .* got '@reboot'"),
    ],
)
def test_what_a_cron_expression_must_be(expression: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        cron(expression)


@pytest.mark.parametrize(
    ("name", "expression"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        (" @Daily ", "0 0 * * *"),
    ],
)
def test_names_of_cron_expressions(name: str, expression: str) -> None:
    assert cron(name).cron == expression
    assert list(islice(cron(name).after(NOON), 3)) == list(islice(cron(expression).after(NOON), 3))


def test_ticks_between_start_and_end() -> None:
    """Both are included, whatever their time zone; a range of ticks begins with its first moment."""
    noon = NOON.astimezone(ZoneInfo("Asia/Tokyo"))
    hours = [NOON + timedelta(hours=hour) for hour in range(3)]
    spec = TickSpec(cron=None, every=3600, time_zone="UTC", starts_at=noon, ends_at=NOON + timedelta(hours=2))
    assert (spec.starts_at, spec.ends_at) == (NOON, NOON + timedelta(hours=2))
    assert list(spec.after(NOON - timedelta(days=9))) == hours
    assert spec.next_after(hours[-1]) is None
    assert ticks_between(spec, NOON - timedelta(days=9), NOON + timedelta(days=9)) == hours
    assert ticks_between(spec, hours[1], hours[2]) == [hours[1]]
    whole = TickSpec(cron="@hourly", every=None, time_zone="UTC", starts_at=noon)
    assert list(islice(whole.after(NOON - timedelta(days=9)), 3)) == hours


def test_a_backfill_is_bounded() -> None:
    assert len(ticks_between(every(60), NOON, NOON + timedelta(minutes=MAX_CATCH_UP))) == MAX_CATCH_UP
    with pytest.raises(ConfigurationError, match="at most 1,000 ticks"):
        ticks_between(every(60), NOON, NOON + timedelta(minutes=MAX_CATCH_UP + 1))


def test_jitter_is_spread_and_the_same_everywhere() -> None:
    late = [jitter_of("nightly", NOON + timedelta(days=day), 600.0).total_seconds() for day in range(200)]
    assert all(0 <= one < 600 for one in late)
    assert min(late) < 60
    assert max(late) > 540
    assert jitter_of("nightly", NOON.astimezone(ZoneInfo("Asia/Tokyo")), 600.0).total_seconds() == late[0]
    assert jitter_of("other", NOON, 600.0).total_seconds() != late[0]


def test_a_jitter_out_of_range() -> None:
    with pytest.raises(ConfigurationError, match=r"jitter must be from 0 to .* seconds, got 400 days$"):
        RecurringSchedule("nightly", report, "all", every=60, jitter=timedelta(days=400))
    with pytest.raises(ConfigurationError, match=r"got -1\.5$"):
        RecurringSchedule("nightly", report, "all", every=60, jitter=-1.5)


def test_names_and_inputs_are_checked() -> None:
    for name in ("", "x" * 481, "é" * 490, "\x00", 7):
        with pytest.raises(InvalidIdentifierError):
            RecurringSchedule(name, report, "all", every=60)  # type: ignore[arg-type]
    with pytest.raises(InvalidIdentifierError):
        RecurringSchedule("nightly", report, "all", every=60, limit_key="")
    with pytest.raises(PayloadError):
        RecurringSchedule("nightly", report, 7, every=60)


def test_ids_of_ticks() -> None:
    tick = NOON + timedelta(microseconds=5)
    assert tick_id("a@b", NOON) == "a@b@2030-01-01T12:00:00Z"
    assert tick_of(tick_id("a@b", tick)) == tick
    berlin = next(cron("0 3 * * *").after(NOON)).astimezone()
    assert tick_id("x", berlin) == "x@2030-01-02T02:00:00Z"
    with pytest.raises(ValueError, match="isoformat"):
        tick_of("something else")


def test_notification_keys_are_no_job_types() -> None:
    assert " " in notification_key("report")


# --- missed ticks -----------------------------------------------------------------------------------------------------


def test_on_time() -> None:
    """The tick that has just come is run, whatever the policy, and the next one is its successor."""
    for missed in MissedRuns:
        now = NOON + timedelta(seconds=2)
        assert ticks_to_run(every(3600), missed, NOON, now) == ([NOON], NOON + timedelta(hours=1))
        assert ticks_to_run(every(3600), missed, NOON, NOON) == ([NOON], NOON + timedelta(hours=1))


@pytest.mark.parametrize(
    ("missed", "hours"), [(MissedRuns.ONCE, [5]), (MissedRuns.SKIP, []), (MissedRuns.ALL, [0, 1, 2, 3, 4, 5])]
)
def test_after_an_outage(missed: MissedRuns, hours: list[int]) -> None:
    now = NOON + timedelta(hours=5, minutes=30)
    ticks, upcoming = ticks_to_run(every(3600), missed, NOON, now)
    assert ticks == [NOON + timedelta(hours=hour) for hour in hours]
    assert upcoming == NOON + timedelta(hours=6)


def test_skip_runs_what_is_hardly_late() -> None:
    latest = NOON + timedelta(hours=5)
    assert ticks_to_run(every(3600), MissedRuns.SKIP, NOON, latest + LATENESS)[0] == [latest]
    assert ticks_to_run(every(3600), MissedRuns.SKIP, NOON, latest + LATENESS + timedelta(seconds=1))[0] == []


@pytest.mark.parametrize("spec", [every(1), cron("* * * * *", "UTC"), cron("*/2 * * * *")])
def test_a_year_of_missed_ticks(spec: TickSpec) -> None:
    """The latest thousand are made up for at most, and finding them does not take a walk through all."""
    now = NOON + timedelta(days=365, seconds=0.5)
    ticks, upcoming = ticks_to_run(spec, MissedRuns.ALL, NOON, now)
    assert len(ticks) == MAX_CATCH_UP
    assert upcoming == spec.next_after(ticks[-1])
    assert upcoming is not None
    assert ticks[-1] <= now < upcoming
    assert all(spec.next_after(earlier) == later for earlier, later in pairwise(ticks))
    assert ticks_to_run(spec, MissedRuns.ONCE, NOON, now) == ([ticks[-1]], upcoming)


def test_missed_over_a_change_of_clocks() -> None:
    due = datetime(2024, 3, 30, 1, 30, tzinfo=UTC)
    ticks, upcoming = ticks_to_run(cron("30 2 * * *"), MissedRuns.ALL, due, datetime(2024, 4, 1, 12, tzinfo=UTC))
    assert [f"{tick:%d. %H:%M}" for tick in ticks] == ["30. 01:30", "31. 01:00", "01. 00:30"]
    assert upcoming == datetime(2024, 4, 2, 0, 30, tzinfo=UTC)


def test_ticks_that_a_test_has_moved_take_those_that_follow_with_them() -> None:
    """So that no id is that of an earlier tick. A tick that a changed time zone has moved is whole seconds off."""
    apart = timedelta(microseconds=3)
    due = NOON - timedelta(hours=2, seconds=1) + apart
    ticks, upcoming = ticks_to_run(every(3600), MissedRuns.ALL, due, NOON)
    assert ticks == [due, due + timedelta(hours=1), due + timedelta(hours=2)]
    assert upcoming == NOON + timedelta(hours=1)
    ticks, _ = ticks_to_run(every(3600), MissedRuns.ALL, due - apart, NOON)
    assert ticks == [due - apart, *(NOON - timedelta(hours=back) for back in (2, 1, 0))]
