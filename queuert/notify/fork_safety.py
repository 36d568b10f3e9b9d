"""Adapters in a forked child: they begin anew, since threads do not survive a fork and sockets must not be shared."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Resettable(Protocol):
    """Something with threads, locks or sockets that a forked child must not use."""

    def reset_after_fork(self) -> None:
        """Become what a new object is. Called in the child, before anything else runs there."""


_known: WeakSet[Resettable] = WeakSet()


def reset_in_children(adapter: Resettable) -> None:
    """Have ``adapter.reset_after_fork`` called in every child that this process forks while the adapter lives."""
    _known.add(adapter)


def _after_fork() -> None:
    for adapter in tuple(_known):
        adapter.reset_after_fork()


os.register_at_fork(after_in_child=_after_fork)
