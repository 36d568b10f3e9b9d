"""Resets adapters in a forked child, where their threads do not exist and their sockets must not be used."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Resettable(Protocol):
    """Something with threads, locks or sockets that a forked child must not use."""

    def reset_after_fork(self) -> None:
        """Return to the state of a new object. Called in the child, before anything else runs there."""


_adapters: WeakSet[Resettable] = WeakSet()


def reset_in_children(adapter: Resettable) -> None:
    """Call ``adapter.reset_after_fork`` in each child that this process forks while the adapter exists."""
    _adapters.add(adapter)


def _after_fork() -> None:
    for adapter in tuple(_adapters):
        adapter.reset_after_fork()


os.register_at_fork(after_in_child=_after_fork)
