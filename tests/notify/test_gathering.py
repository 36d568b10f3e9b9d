"""When notifications go out."""

from __future__ import annotations

import pytest

from queuert.notify.postgres import MANY_KEYS, MAX_INTERVAL, MAX_INTERVAL_OF_MANY, MIN_INTERVAL, NotifyThrottle


def test_after_a_silence_at_once_and_ever_fewer_in_a_stream() -> None:
    throttle = NotifyThrottle()
    now, waits = 100.0, []
    for _ in range(5):
        assert throttle.begin(now)
        throttle.sent(now + 0.0001)
        waits.append(throttle.next_at - now - 0.0001)
        now = throttle.next_at
    assert waits == pytest.approx([MIN_INTERVAL, 2 * MIN_INTERVAL, 4 * MIN_INTERVAL, MAX_INTERVAL, MAX_INTERVAL])
    now += MAX_INTERVAL
    assert throttle.begin(now)
    assert throttle.next_at - now == pytest.approx(MIN_INTERVAL)


def test_longer_while_each_sending_tells_of_many() -> None:
    throttle = NotifyThrottle()
    now, waits = 100.0, []
    for keys in (MANY_KEYS, MANY_KEYS, MANY_KEYS, MANY_KEYS, MANY_KEYS, MANY_KEYS - 1, MANY_KEYS):
        assert throttle.begin(now)
        throttle.sent(now, keys)
        waits.append(throttle.next_at - now)
        now = throttle.next_at
    grown = [MIN_INTERVAL * 2**times for times in range(5)]
    assert waits == pytest.approx([*grown, MAX_INTERVAL_OF_MANY, MAX_INTERVAL])


def test_a_notification_now_and_then_never_waits() -> None:
    throttle = NotifyThrottle()
    for now in (1.0, 1.005, 1.01, 1.015):
        assert throttle.begin(now)
        throttle.sent(now)


def test_what_is_under_way_counts() -> None:
    throttle = NotifyThrottle()
    assert throttle.begin(1.0)
    assert not throttle.begin(1.0)
    assert throttle.begin(1.0 + MIN_INTERVAL)
    throttle.sent(2.0)
    assert not throttle.begin(2.0)
    assert throttle.next_at == pytest.approx(2.0 + 2 * MIN_INTERVAL)
    throttle.sent(1.0)
    assert throttle.next_at == pytest.approx(2.0 + 2 * MIN_INTERVAL)
