"""The leases that a worker holds: all that one claim brought are looked after, or none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from queuert.jobs import AbortReason
from queuert.worker.leases import HeldLease, LeaseRegistry


class Nobody:
    """A holder that need not be told."""

    def abort(self, reason: AbortReason) -> None:
        raise AssertionError(reason)


class Unaffordable(HeldLease):
    """There is no memory to note it."""

    def __hash__(self) -> int:
        raise MemoryError


def test_without_memory_for_all_none_is_kept() -> None:
    """A lease that is renewed for an attempt that never begins would keep its job from everybody, for ever."""
    book = LeaseRegistry()
    job: Any = SimpleNamespace(lease_seconds=1.0)
    with pytest.raises(MemoryError):
        book.add([HeldLease(job, 1.0, 0.0, Nobody()), Unaffordable(job, 1.0, 0.0, Nobody())])
    assert len(book) == 0


def test_progress_becomes_an_event_ever_more_seldom() -> None:
    """However often it is recorded: at most once a second, and some 300 times in an hour. The newest always does."""
    book = LeaseRegistry()
    job: Any = SimpleNamespace(lease_seconds=60.0, lease="lease")
    held = HeldLease(job, 20.0, 0.0, Nobody())
    book.add([held])
    logged = []
    for half_second in range(2 * 3600):
        now = half_second / 2
        book.set_progress(held, f"{now}")
        renewal = held.renewal(now)
        assert renewal.progress == f"{now}"
        if renewal.logs_progress:
            logged.append(now)
        book.clear_progress(held, renewal, now)
        assert held.progress is None
    assert logged[:3] == [0.0, 1.0, 2.0]
    assert 250 < len(logged) < 320
    assert held.renewal(3600.0).progress is None
    last = held.renewal(4000.0)
    assert (last.progress, last.logs_progress) == ("3599.5", True)
    book.clear_progress(held, last, 4000.0)
    assert held.renewal(5000.0).progress is None


def test_progress_that_was_replaced_meanwhile_is_written_again() -> None:
    book = LeaseRegistry()
    job: Any = SimpleNamespace(lease_seconds=60.0, lease="lease")
    held = HeldLease(job, 20.0, 0.0, Nobody())
    book.set_progress(held, "first")
    renewal = held.renewal(0.0)
    book.set_progress(held, "second")
    book.clear_progress(held, renewal, 0.0)
    assert (held.renewal(0.5).progress, held.renewal(0.5).logs_progress) == ("second", False)
    assert held.renewal(1.0).logs_progress


def test_progress_is_not_taken_while_it_is_being_written() -> None:
    """A handler has ended: what a renewal has written is not written with the finish again."""
    book = LeaseRegistry()
    job: Any = SimpleNamespace(lease_seconds=60.0, lease="lease")
    held = HeldLease(job, 20.0, 0.0, Nobody())
    book.set_progress(held, "written")
    [renewal] = book.begin_renewals([held], 0.0)
    assert book.take_progress(held) == (True, None)
    book.clear_progress(held, renewal, 0.0)
    book.end_renewals([held])
    assert book.take_progress(held) == (False, None)
    book.set_progress(held, "newer")
    assert book.take_progress(held) == (False, "newer")
    assert not held.has_progress


def test_progress_that_is_being_written_is_waited_for() -> None:
    """A phase writes its own progress after it, so that an older one never comes later."""
    book = LeaseRegistry()
    job: Any = SimpleNamespace(lease_seconds=60.0, lease="lease")
    held, other = HeldLease(job, 20.0, 0.0, Nobody()), HeldLease(job, 20.0, 0.0, Nobody())
    book.set_progress(held, "older")
    assert not book.withdraw_progress(held)
    assert [one.progress for one in book.begin_renewals([held, other], 0.0)] == [None, None]
    assert not book.withdraw_progress(held)
    book.end_renewals([held, other])
    book.set_progress(held, "older")
    [renewal, without] = book.begin_renewals([held, other], 1.0)
    assert (renewal.progress, without.progress) == ("older", None)
    book.set_progress(held, "old as well")
    assert book.withdraw_progress(held)
    assert not book.withdraw_progress(other)
    assert held.progress is None
    book.end_renewals([held, other])
    assert not book.withdraw_progress(held)
