"""The private parts of psycopg and psycopg_pool that the store uses.

:mod:`queuert.state.postgres.protocol` sends statements without psycopg's cursors and needs private parts. If one is
missing, or the environment sets ``QUEUERT_PLAIN_CURSORS=1``, all statements use the cursors instead: the results are
the same, but each start and claim costs more processor time. :mod:`queuert.state.postgres.pool` needs the queue of a
pool, ``_waiting``, whose waits have ``conn``, ``error`` and ``_cond``, and the tasks of an async one. Of a caller's
connection only ``_tpc`` is read.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg_pool import PoolTimeout

if TYPE_CHECKING:
    from psycopg.abc import PQGen

try:
    from psycopg import generators
    from psycopg.adapt import Transformer
    from psycopg.waiting import Ready, Wait
except ImportError as error:
    generators = Transformer = Ready = Wait = None  # type: ignore[assignment,misc]
    _not_imported = [str(error)]
else:
    _not_imported = []

__all__ = [
    "PLAIN_CURSORS",
    "DeallocationHook",
    "Ready",
    "Transformer",
    "Wait",
    "end_own_wait",
    "forget_ended_tasks",
    "forget_ended_waits",
    "forget_own_wait",
    "generators",
    "is_two_phase",
    "missing_parts",
    "remember_waits",
    "waiting_calls",
]


def missing_parts() -> list[str]:
    """Return the names of the parts that this version of psycopg does not have."""
    needed: tuple[tuple[object, str], ...] = (
        (psycopg.BaseConnection, "_deallocate"),
        (psycopg.AsyncConnection, "wait"),
        (psycopg.Connection, "wait"),
        (generators, "execute"),
        (Transformer, "set_pgresult"),
        (Transformer, "load_rows"),
    )
    return _not_imported or [f"{_name(owner)}.{name}" for owner, name in needed if not hasattr(owner, name)]


def _name(owner: Any) -> str:
    return str(owner.__name__)


def _needs_plain_cursors() -> bool:
    missing = missing_parts()
    if missing:
        logging.getLogger(__name__).warning(
            "psycopg %s lacks parts that queuert uses (%s): statements go through psycopg's cursors, which is slower."
            " Install a version of psycopg that this release of queuert names",
            psycopg.__version__,
            ", ".join(missing),
        )
    return bool(missing) or os.environ.get("QUEUERT_PLAIN_CURSORS", "") not in ("", "0")


PLAIN_CURSORS: bool = _needs_plain_cursors()
"""Whether all statements must use psycopg's cursors."""


def is_two_phase(connection: object) -> bool:
    """Whether ``tpc_begin()`` of psycopg has begun the transaction of a connection, so that it will be prepared."""
    return getattr(connection, "_tpc", None) is not None


class DeallocationHook:
    """A mixin for connections. psycopg calls ``_deallocate`` for one of its prepared statements, or with None for
    all."""

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        deallocation: PQGen[None] = super()._deallocate(name)  # type: ignore[misc]
        return deallocation if name is not None else self._after(deallocation)

    def _after(self, deallocation: PQGen[None]) -> PQGen[None]:
        yield from deallocation
        self.on_deallocate_all()

    def on_deallocate_all(self) -> None:
        """Called when the server has deallocated every prepared statement of the connection."""
        raise NotImplementedError


class _ThreadWaits(deque[Any]):
    """The queue of a pool, which remembers the last wait of each thread."""

    def __init__(self) -> None:
        super().__init__()
        self.own = threading.local()

    def append(self, wait: Any) -> None:
        self.own.wait = wait
        super().append(wait)


def remember_waits(pool: Any) -> None:
    """Let :func:`end_own_wait` find the wait of a thread, in a pool that is not open yet."""
    pool._waiting = _ThreadWaits()


def forget_own_wait(pool: Any) -> None:
    """Call this before a thread asks the pool for a connection: what it waited for earlier is over."""
    pool._waiting.own.wait = None


def end_own_wait(pool: Any) -> None:
    """End the wait of this thread, which Ctrl-C, or a signal's handler that raises, has interrupted.

    The pool's own code ends a wait at an Exception only. Otherwise the next connection that becomes free goes to the
    wait, from which nobody takes it: the pool would be one short for ever.
    """
    wait = pool._waiting.own.wait
    if wait is None:
        return
    with wait._cond:
        connection = wait.conn
        if connection is None and wait.error is None:
            wait.error = PoolTimeout("the wait was interrupted")
    if connection is not None:
        connection._pool = pool
        pool.putconn(connection)
    forget_ended_waits(pool)


def waiting_calls(pool: Any) -> int:
    """Return how many calls wait for a connection of an (async) pool of psycopg's.

    The pool counts those that have timed out or were cancelled as well, until their turn comes.
    """
    return sum(wait.error is None for wait in list(pool._waiting))


def forget_ended_waits(pool: Any) -> None:
    """Remove the calls that wait no longer from the queue of an (async) pool of psycopg's.

    Otherwise each stays there, with its error, until a connection comes that it cannot take: an outage would take more
    and more memory.
    """
    for wait in list(pool._waiting):
        if wait.error is not None:
            # Another thread may have been faster.
            with suppress(ValueError):
                pool._waiting.remove(wait)


def forget_ended_tasks(pool: Any) -> None:
    """Remove the tasks of an async pool that somebody has cancelled, so that its close waits for the others only.

    Otherwise the close raises what they raised, as if its own caller had been cancelled, and leaves connections open.
    """
    pool._workers = [task for task in pool._workers if not task.done()]
    if pool._sched_runner is not None and pool._sched_runner.done():
        pool._sched_runner = None
