"""The bounded set of notifications that wait to be sent."""

from __future__ import annotations

from collections.abc import Iterator

from queuert.notify import Topic
from queuert.notify.listener import MAX_KEY_LENGTH, MAX_KEYS, Outbox


def test_each_key_waits_once() -> None:
    pending = Outbox()
    assert pending.add(Topic.JOBS, ["a", "b"])
    assert not pending.add(Topic.JOBS, ["b", "c"])
    assert pending.take() == {Topic.JOBS: frozenset("abc")}
    assert not pending.keys
    assert pending.take() == {}


def test_nothing_is_nothing() -> None:
    pending = Outbox()
    assert not pending.add(Topic.JOBS, [])
    assert not pending.keys


def test_topics_are_kept_apart() -> None:
    pending = Outbox()
    pending.add(Topic.JOBS, ["a"])
    pending.add(Topic.LEASES, ["b"])
    assert pending.take() == {Topic.JOBS: frozenset("a"), Topic.LEASES: frozenset("b")}


def test_too_many_keys_become_all() -> None:
    pending = Outbox()
    pending.add(Topic.JOBS, map(str, range(MAX_KEYS)))
    pending.add(Topic.JOBS, ["0"])
    kept = pending.take()[Topic.JOBS]
    assert kept is not None
    assert len(kept) == MAX_KEYS
    pending.restore({Topic.JOBS: kept})
    pending.add(Topic.JOBS, ["one more"])
    assert pending.take() == {Topic.JOBS: None}


def test_all_stays_all() -> None:
    pending = Outbox()
    pending.add(Topic.JOBS, None)
    pending.add(Topic.JOBS, ["a"])
    assert pending.take() == {Topic.JOBS: None}


def test_a_key_that_is_too_long_becomes_all() -> None:
    pending = Outbox()
    pending.add(Topic.JOBS, ["x" * (MAX_KEY_LENGTH + 1)])
    assert pending.take() == {Topic.JOBS: None}


def test_an_endless_iterable_is_not_read_to_its_end() -> None:
    def endless() -> Iterator[str]:
        number = 0
        while True:
            number += 1
            yield str(number)

    pending = Outbox()
    pending.add(Topic.JOBS, endless())
    assert pending.take() == {Topic.JOBS: None}
