"""Policies, schedules and ids: pure values."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuert import RetryPolicy, after, at
from queuert.errors import ConfigurationError, PayloadDecodeError, StateError, StateUnavailableError
from queuert.ids import new_id, new_ids, new_token
from queuert.policies import Backoff, Keep, LeasePolicy, Retention

_UNREADABLE = PayloadDecodeError(job_type="number", field="input", path="input", reason="it is no number")


def test_the_pauses_double_up_to_the_maximum() -> None:
    policy = RetryPolicy(initial_delay=10, multiplier=2, max_delay=300)
    assert [policy.base_delay(attempt) for attempt in range(1, 8)] == [10, 20, 40, 80, 160, 300, 300]


@given(
    attempt=st.integers(1, 10**9),
    multiplier=st.floats(1, 1e6),
    initial_delay=st.floats(0, 1e6),
    jitter=st.floats(0, 1),
)
def test_no_attempt_overflows_or_leaves_the_range(
    attempt: int, multiplier: float, initial_delay: float, jitter: float
) -> None:
    policy = RetryPolicy(initial_delay=initial_delay, multiplier=multiplier, max_delay=1e6, jitter=jitter)
    base = policy.base_delay(attempt)
    assert 0 <= base <= 1e6
    assert base <= policy.delay(attempt) <= base * (1 + jitter)


def test_the_cap_counts_failed_attempts() -> None:
    policy = RetryPolicy(max_attempts=3)
    assert [policy.allows_another(failed) for failed in (1, 2, 3, 4)] == [True, True, False, False]


def test_crashes_are_counted_apart_and_have_a_cap_of_their_own() -> None:
    policy = RetryPolicy(max_attempts=10, max_crashes=2)
    assert [policy.allows_another(failed, crashes) for failed, crashes in ((9, 0), (9, 1), (2, 2), (10, 0))] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("policy", "error", "again"),
    [
        (RetryPolicy(), ValueError(), True),
        (RetryPolicy(), SystemExit(), True),
        (RetryPolicy(retry_on=()), ValueError(), False),
        (RetryPolicy(retry_on=(LookupError,)), KeyError(), True),
        (RetryPolicy(retry_on=(KeyError,)), LookupError(), False),
        (RetryPolicy(fail_on=(LookupError,)), KeyError(), False),
        (RetryPolicy(fail_on=(KeyError,)), LookupError(), True),
        (RetryPolicy(retry_on=(LookupError,), fail_on=(KeyError,)), KeyError(), False),
        (RetryPolicy(retry_on=(KeyError,), fail_on=(LookupError,)), KeyError(), False),
        (RetryPolicy(retry_on=(OSError,)), StateUnavailableError(), True),
        (RetryPolicy(fail_on=(StateError,)), StateUnavailableError(), False),
        (RetryPolicy(retry_on=(OSError,)), _UNREADABLE, True),
    ],
)
def test_classes_and_their_subclasses_decide(policy: RetryPolicy, error: BaseException, again: bool) -> None:
    assert policy.allows_after(error) is again


@pytest.mark.parametrize(
    ("errors", "final", "passing"),
    [
        ([OSError()], False, True),
        ([OSError(), ConnectionError()], False, True),
        ([OSError(), KeyError()], False, False),
        ([OSError(), ValueError()], True, False),
        ([OSError(), ExceptionGroup("inner", [ValueError()])], True, False),
        ([OSError(), ExceptionGroup("inner", [ConnectionError(), StateUnavailableError()])], False, True),
    ],
)
def test_one_of_a_group_is_final_and_all_of_it_must_be_passing(
    errors: list[Exception], final: bool, passing: bool
) -> None:
    group = ExceptionGroup("group", errors)
    assert RetryPolicy(fail_on=(ValueError,)).allows_after(group) is not final
    assert RetryPolicy(retry_on=(OSError,)).allows_after(group) is passing
    assert RetryPolicy(retry_on=(ExceptionGroup,)).allows_after(group)
    assert not RetryPolicy(fail_on=(ExceptionGroup,)).allows_after(group)


def test_a_lease_is_renewed_every_third_of_it_unless_reported_otherwise() -> None:
    assert LeasePolicy(seconds=60).renewal_interval == 20
    assert LeasePolicy(seconds=60, renew_every=5).renewal_interval == 5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: RetryPolicy(max_attempts=0), "max_attempts"),
        (lambda: RetryPolicy(max_attempts=1_000_001), "max_attempts"),
        (lambda: RetryPolicy(max_attempts=2.5), "max_attempts"),  # type: ignore[arg-type]
        (lambda: RetryPolicy(max_attempts=True), "max_attempts"),
        (lambda: RetryPolicy(max_crashes=0), "max_crashes"),
        (lambda: RetryPolicy(max_crashes=2.5), "max_crashes"),  # type: ignore[arg-type]
        (lambda: RetryPolicy(max_crashes=1_000_001), "max_crashes"),
        (lambda: RetryPolicy(retry_on=ValueError), "retry_on"),  # type: ignore[arg-type]
        (lambda: RetryPolicy(retry_on=[ValueError]), "retry_on"),  # type: ignore[arg-type]
        (lambda: RetryPolicy(fail_on=(ValueError, 5)), "fail_on"),  # type: ignore[arg-type]
        (lambda: RetryPolicy(fail_on=(int,)), "fail_on"),  # type: ignore[arg-type]
        (lambda: RetryPolicy(fail_on=None), "fail_on"),  # type: ignore[arg-type]
        (lambda: RetryPolicy(initial_delay=-1), "initial_delay"),
        (lambda: RetryPolicy(multiplier=0.5), "multiplier"),
        (lambda: RetryPolicy(initial_delay=10, max_delay=5), "max_delay"),
        (lambda: RetryPolicy(jitter=1.5), "jitter"),
        (lambda: LeasePolicy(seconds=0), "0.1 and 604,800"),
        (lambda: LeasePolicy(seconds=10**9), "a week"),
        (lambda: LeasePolicy(seconds=10, renew_every=5), "half"),
        (lambda: LeasePolicy(seconds=10, renew_every=0), "renew_every"),
        (lambda: RetryPolicy(initial_delay=float("nan")), "initial_delay"),
        (lambda: LeasePolicy(seconds=float("nan")), "lease"),
        (lambda: after(seconds=-1), "between 0 and a hundred years"),
        (lambda: after(days=365 * 101), "between 0 and a hundred years"),
        (lambda: after(minutes=1, seconds=math.nan), "between 0 and a hundred years, got minutes=1, seconds=nan"),
        (lambda: after(hours=math.inf), "between 0 and a hundred years, got hours=inf"),
        (lambda: after(days=1e12), "between 0 and a hundred years, got days=1000000000000.0"),
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
    backoff = Backoff(initial_delay=1, max_delay=4)
    for failures, ceiling in ((1, 1), (2, 2), (3, 4), (50, 4), (5000, 4)):
        assert ceiling / 2 <= backoff.delay(failures) <= ceiling


def test_ids_are_uuids_of_version_seven_in_the_order_of_time() -> None:
    ids = [uuid.UUID(new_id()) for _ in range(2_000)]
    assert {(one.version, one.variant) for one in ids} == {(7, uuid.RFC_4122)}
    assert len(set(ids)) == len(ids)
    milliseconds = [one.int >> 80 for one in ids]
    assert milliseconds == sorted(milliseconds)
    assert abs(milliseconds[-1] / 1000 - datetime.now(UTC).timestamp()) < 3600


@pytest.mark.parametrize("count", [0, 1, 2, 1_000, 5_000])
def test_ids_made_together_are_uuids_of_version_seven_in_ascending_order(count: int) -> None:
    ids = new_ids(count) + new_ids(count)
    assert len(set(ids)) == 2 * count
    assert [str(uuid.UUID(one)) for one in ids] == ids
    assert {(one.version, one.variant) for one in map(uuid.UUID, ids)} <= {(7, uuid.RFC_4122)}
    assert ids[:count] == sorted(ids[:count])
    assert all(abs(int(one[:8], 16) - int(new_id()[:8], 16)) <= 1 for one in ids)


def test_tokens_are_random_uuids() -> None:
    tokens = {uuid.UUID(new_token()) for _ in range(100)}
    assert len(tokens) == 100
    assert {token.version for token in tokens} == {4}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"age": 0},
        {"age": -1},
        {"age": float("nan")},
        {"age": float("inf")},
        {"age": "60"},
        {"age": True},
        {"count": -1},
        {"count": 1.5},
        {"count": True},
        {"count": 1_000_001},
    ],
)
def test_impossible_bounds(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Keep(**wrong)


def test_bounds_of_what_is_kept() -> None:
    assert Keep(age=timedelta(days=1)) == Keep(age=86_400)
    assert (Keep(age=60).seconds, Keep(age=60).count) == (60.0, None)
    assert (Keep(count=0).seconds, Keep(count=0).count) == (None, 0)
    wrong: Any = 5
    with pytest.raises(ConfigurationError, match="failed must be Keep"):
        Retention(failed=wrong)
