"""When notifications go out."""

from __future__ import annotations

import pytest

from queuert.notify.postgres import LONGEST, LONGEST_OF_MANY, MANY, SHORTEST, NotifyThrottle


def test_after_a_silence_at_once_and_ever_fewer_in_a_stream() -> None:
    gathering = NotifyThrottle()
    now, waits = 100.0, []
    for _ in range(5):
        assert gathering.begin(now)
        gathering.sent(now + 0.0001)
        waits.append(gathering.next_at - now - 0.0001)
        now = gathering.next_at
    assert waits == pytest.approx([SHORTEST, 2 * SHORTEST, 4 * SHORTEST, LONGEST, LONGEST])
    now += LONGEST
    assert gathering.begin(now)
    assert gathering.next_at - now == pytest.approx(SHORTEST)


def test_longer_while_each_sending_tells_of_many() -> None:
    gathering = NotifyThrottle()
    now, waits = 100.0, []
    for keys in (MANY, MANY, MANY, MANY, MANY, MANY - 1, MANY):
        assert gathering.begin(now)
        gathering.sent(now, keys)
        waits.append(gathering.next_at - now)
        now = gathering.next_at
    grown = [SHORTEST * 2**times for times in range(5)]
    assert waits == pytest.approx([*grown, LONGEST_OF_MANY, LONGEST])


def test_a_notification_now_and_then_never_waits() -> None:
    gathering = NotifyThrottle()
    for now in (1.0, 1.005, 1.01, 1.015):
        assert gathering.begin(now)
        gathering.sent(now)


def test_what_is_under_way_counts() -> None:
    gathering = NotifyThrottle()
    assert gathering.begin(1.0)
    assert not gathering.begin(1.0)
    assert gathering.begin(1.0 + SHORTEST)
    gathering.sent(2.0)
    assert not gathering.begin(2.0)
    assert gathering.next_at == pytest.approx(2.0 + 2 * SHORTEST)
    gathering.sent(1.0)
    assert gathering.next_at == pytest.approx(2.0 + 2 * SHORTEST)
