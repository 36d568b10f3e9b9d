"""Policies, schedules and ids: pure values."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuert import LeasePolicy, RetryPolicy, after, at
from queuert.errors import ConfigurationError
from queuert.ids import new_id, new_token
from queuert.policies import Backoff


def test_the_pauses_double_up_to_the_maximum() -> None:
    policy = RetryPolicy(initial=10, multiplier=2, maximum=300)
    assert [policy.base_delay(attempt) for attempt in range(1, 8)] == [10, 20, 40, 80, 160, 300, 300]


@given(
    attempt=st.integers(1, 10**9),
    multiplier=st.floats(1, 1e6),
    initial=st.floats(0, 1e6),
    jitter=st.floats(0, 1),
)
def test_no_attempt_overflows_or_leaves_the_range(
    attempt: int, multiplier: float, initial: float, jitter: float
) -> None:
    policy = RetryPolicy(initial=initial, multiplier=multiplier, maximum=1e6, jitter=jitter)
    base = policy.base_delay(attempt)
    assert 0 <= base <= 1e6
    assert base <= policy.delay(attempt) <= base * (1 + jitter)


def test_the_cap_counts_failed_attempts() -> None:
    policy = RetryPolicy(max_attempts=3)
    assert [policy.allows_another(failed) for failed in (1, 2, 3, 4)] == [True, True, False, False]


def test_a_lease_is_renewed_every_third_of_it_unless_told_otherwise() -> None:
    assert LeasePolicy(seconds=60).renewal_interval == 20
    assert LeasePolicy(seconds=60, renew_every=5).renewal_interval == 5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: RetryPolicy(max_attempts=0), "max_attempts"),
        (lambda: RetryPolicy(initial=-1), "initial"),
        (lambda: RetryPolicy(multiplier=0.5), "multiplier"),
        (lambda: RetryPolicy(initial=10, maximum=5), "maximum"),
        (lambda: RetryPolicy(jitter=1.5), "jitter"),
        (lambda: LeasePolicy(seconds=0), "too short"),
        (lambda: LeasePolicy(seconds=10**9), "too long"),
        (lambda: LeasePolicy(seconds=10, renew_every=5), "half"),
        (lambda: LeasePolicy(seconds=10, renew_every=0), "renew_every"),
        (lambda: RetryPolicy(initial=float("nan")), "initial"),
        (lambda: LeasePolicy(seconds=float("nan")), "lease"),
        (lambda: after(seconds=-1), "scheduled"),
        (lambda: after(days=365 * 101), "scheduled"),
        (lambda: at(datetime(2030, 1, 1)), "time zone"),
    ],
)
def test_settings_out_of_range_are_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make()


def test_schedules_are_seconds_or_moments_in_utc() -> None:
    assert after(minutes=5, seconds=1).delay == 301
    assert after(timedelta(hours=1), minutes=1).delay == 3660
    moment = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert at(moment).moment == datetime(2030, 1, 1, 10, tzinfo=UTC)


def test_backoff_doubles_within_its_bounds() -> None:
    backoff = Backoff(initial=1, maximum=4)
    for failures, ceiling in ((1, 1), (2, 2), (3, 4), (50, 4), (5000, 4)):
        assert ceiling / 2 <= backoff.delay(failures) <= ceiling


def test_ids_are_uuids_of_version_seven_in_the_order_of_time() -> None:
    ids = [uuid.UUID(new_id()) for _ in range(2_000)]
    assert {(one.version, one.variant) for one in ids} == {(7, uuid.RFC_4122)}
    assert len(set(ids)) == len(ids)
    milliseconds = [one.int >> 80 for one in ids]
    assert milliseconds == sorted(milliseconds)
    assert abs(milliseconds[-1] / 1000 - datetime.now(UTC).timestamp()) < 3600


def test_tokens_are_random_uuids() -> None:
    tokens = {uuid.UUID(new_token()) for _ in range(100)}
    assert len(tokens) == 100
    assert {token.version for token in tokens} == {4}
