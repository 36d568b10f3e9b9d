"""How much is written, by type: all, the ends, or nothing; whoever writes it, from the next statement on."""

from __future__ import annotations

import pytest

from queuert.errors import ConfigurationError
from queuert.event_log import EventLevel
from queuert.policies import RetryPolicy
from queuert.state.types import Finish, FinishKind, NewJob, ReapRequest, WorkerlessCompletion
from tests.support.store_harness import StoreHarness, opened


def everything(harness: StoreHarness, type: str) -> None:
    """Jobs through all that can happen to them."""
    store = harness.store
    harness.start(f"{type} 1", type=type)
    store.start_jobs([NewJob(f"{type} child", type, "1", blockers=(f"{type} 1",))])
    [lease] = harness.claim(type=type)
    store.release([lease.lease])
    [lease] = harness.claim(type=type)
    store.finish([Finish(lease, FinishKind.RETRY)])
    [lease] = harness.claim(type=type)
    store.finish([Finish(lease, FinishKind.CONTINUE, continuation=NewJob(f"{type} 2", type, "1"))])
    [lease] = harness.claim(type=type)
    store.finish([Finish(lease, FinishKind.FAIL)])
    store.retry_chains([f"{type} 1"])
    store.complete_chains([WorkerlessCompletion(f"{type} 1", f"{type} 2", "1", None)])
    [lease] = harness.claim(type=type)
    harness.expire(lease.id)
    store.reap(ReapRequest({type: RetryPolicy(max_attempts=1)}))
    store.retry_chains([f"{type} child"])
    store.cancel_chains([f"{type} child"], reason="no")
    store.delete_chains([f"{type} child"])
    harness.start(f"{type} 3", type=type)
    store.finish([Finish(one, FinishKind.COMPLETE, output="1") for one in harness.claim(type=type)])


ENDS = [
    ("1", "continued", "continued"),
    ("2", "failed", "failed"),
    ("2", "retried_by_hand", "ready"),
    ("2", "completed", "completed"),
    ("child", "lease_expired", "failed"),
    ("child", "retried_by_hand", "ready"),
    ("child", "cancelled", "cancelled"),
    ("child", "deleted", "cancelled"),
    ("3", "completed", "completed"),
]


def reported(harness: StoreHarness, type: str) -> list[tuple[str, str, str]]:
    return [(job.removeprefix(f"{type} "), kind, status) for job, kind, status, *_ in harness.new()]


def test_each_type_has_its_own(harness: StoreHarness) -> None:
    harness.store.set_event_level(EventLevel.TERMINAL, ["ends"])
    harness.store.set_event_level(EventLevel.OFF, ["nothing"])
    everything(harness, "ends")
    assert reported(harness, "ends") == ENDS
    everything(harness, "nothing")
    assert reported(harness, "nothing") == []
    everything(harness, "work")
    all_of_it = reported(harness, "work")
    assert [one for one in all_of_it if one in ENDS] == ENDS
    assert len(all_of_it) == 23


def test_the_others_have_one_level(harness: StoreHarness) -> None:
    """A type's own goes first; without one of its own it has that of all others again."""
    harness.store.set_event_level(EventLevel.OFF)
    harness.store.set_event_level(EventLevel.ALL, ["work"])
    harness.start("a")
    harness.start("b", type="other")
    assert [event[0] for event in harness.new()] == ["a"]
    harness.store.set_event_level(None, ["work"])
    harness.start("c")
    assert harness.new() == []


def test_a_batch_of_many_types(harness: StoreHarness) -> None:
    harness.store.set_event_level(EventLevel.TERMINAL, ["ends"])
    harness.store.start_jobs([NewJob("a", "ends", "1"), NewJob("b", "work", "1"), NewJob("c", "ends", "1")])
    assert [event[0] for event in harness.new()] == ["b"]
    leases = harness.claim(2, type="ends") + harness.claim(type="work")
    harness.new()
    harness.store.finish([Finish(one, FinishKind.COMPLETE, output="1") for one in leases])
    assert sorted(event[0] for event in harness.new()) == ["a", "b", "c"]


def test_others_hear_of_it(harness: StoreHarness) -> None:
    """The level is in the database: a store that was open before writes by it, prepared statements and all."""
    other = opened(harness.dsn)
    try:
        for number in range(10):
            other.start_jobs([NewJob(f"a{number}", "work", "1")])
        assert len(harness.new()) == 10
        harness.store.set_event_level(EventLevel.OFF, ["work"])
        other.start_jobs([NewJob("b", "work", "1")])
        assert harness.new() == []
    finally:
        other.close()


def test_what_is_set_can_be_read(harness: StoreHarness) -> None:
    log = harness.store.get_event_log()
    assert (log.level, log.levels, log.keep_days) == (EventLevel.ALL, {}, 14)
    harness.store.set_event_level(EventLevel.TERMINAL)
    harness.store.set_event_level(EventLevel.OFF, ["b", "a"])
    harness.store.set_event_level(EventLevel.ALL, ["b"])
    harness.store.set_event_retention(3)
    log = harness.store.get_event_log()
    assert (log.level, log.keep_days) == (EventLevel.TERMINAL, 3)
    assert list(log.levels.items()) == [("a", EventLevel.OFF), ("b", EventLevel.ALL)]


@pytest.mark.parametrize("days", [0, -1, 36_501, 1.5, True])
def test_days_that_make_no_sense(harness: StoreHarness, days: int) -> None:
    with pytest.raises(ConfigurationError, match="days"):
        harness.store.set_event_retention(days)
