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
