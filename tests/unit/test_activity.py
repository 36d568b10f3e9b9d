"""Histograms of durations, and the numbers of an activity."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuert.activity import (
    BOUNDS,
    BUCKETS,
    COUNTS,
    HOUR,
    MINUTE,
    NUMBERS,
    Activity,
    ActivityFilter,
    Histogram,
    numbers_of,
    shown_numbers,
    summed,
)
from queuert.errors import ConfigurationError
from queuert.worker.telemetry import RUN_AT, WAIT_AT

AT = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)


def bucket_of(seconds: float) -> int:
    """As the worker computes it, beside the bounds."""
    return RUN_AT[int(seconds * 1000).bit_length()] - RUN_AT[0]


def histogram(durations: list[float]) -> Histogram:
    buckets = [0] * BUCKETS
    for seconds in durations:
        buckets[bucket_of(seconds)] += 1
    return Histogram(tuple(buckets))


@pytest.mark.parametrize("seconds", [*(bound * factor for bound in BOUNDS for factor in (0.999, 1.0, 1.5)), 0.0, 1e9])
def test_a_duration_is_in_the_first_bucket_whose_bound_it_is_below(seconds: float) -> None:
    expected = next((at for at, bound in enumerate(BOUNDS) if seconds < bound), len(BOUNDS))
    assert bucket_of(seconds) == expected
    assert WAIT_AT[int(seconds * 1000).bit_length()] - WAIT_AT[0] == expected


@given(st.lists(st.floats(0.001, BOUNDS[-1] * 0.999), min_size=1), st.floats(0, 1))
def test_a_quantile_is_off_by_the_documented_factor_at_most(durations: list[float], share: float) -> None:
    found = histogram(durations).quantile(share)
    assert found is not None
    rank = max(1, -int(-(share * len(durations)) // 1))
    exact = sorted(durations)[rank - 1]
    assert exact / (sqrt(2) * 1.000001) <= found <= exact * sqrt(2) * 1.000001


def test_quantiles_beyond_the_bounds() -> None:
    assert Histogram().quantile(0.5) is None
    assert Histogram((0, 0)).quantile(1) is None
    assert histogram([0.0, 0.0009]).quantile(0.5) == 0.0005
    assert histogram([40_000.0, 1e9]).quantile(0.5) == BOUNDS[-1]
    assert histogram([0.003] * 99 + [50.0]).quantile(0.99) == pytest.approx(0.004 / sqrt(2))
    assert histogram([0.003] * 99 + [50.0]).quantile(1) == pytest.approx(65.536 / sqrt(2))


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_shares_of_quantiles_are_between_0_and_1(share: float) -> None:
    with pytest.raises(ConfigurationError, match="between 0 and 1"):
        Histogram((1,)).quantile(share)


@given(st.lists(st.integers(0, 10**12), min_size=NUMBERS, max_size=NUMBERS))
def test_numbers_come_back_as_they_are_stored(numbers: list[int]) -> None:
    one = Activity.of(AT, MINUTE, "work", None, numbers)
    assert one.numbers == numbers
    assert numbers_of(shown_numbers(numbers)) == numbers
    assert one.counts == tuple(getattr(one, name) for name in COUNTS)


def test_sums_are_by_place() -> None:
    later = AT + timedelta(hours=1)
    given = [
        Activity(later, MINUTE, "b", "w1", started=1, wait=Histogram((1,))),
        Activity(later + timedelta(minutes=1), MINUTE, "b", "w2", started=2, wait=Histogram((0, 0, 2))),
        Activity(AT, HOUR, "c", None, failed=1),
        Activity(later, MINUTE, "a", "w1", run=Histogram((5,))),
    ]
    hour = later.replace(minute=0)
    assert summed(given, ActivityFilter(AT, by="hour").place) == [
        Activity(AT, HOUR, "c", failed=1),
        Activity(hour, HOUR, "a", run=Histogram((5,))),
        Activity(hour, HOUR, "b", started=3, wait=Histogram((1, 0, 2))),
    ]
