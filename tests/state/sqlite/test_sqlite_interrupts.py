"""A signal handler that raises, as of Ctrl-C, leaves no lock behind, wherever in a call it comes."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import pytest

import queuert.state.sqlite
from queuert.errors import StateError, StateUnavailableError
from queuert.state.sqlite import SQLiteState, connection
from queuert.state.sqlite.store import SQLiteStore
from queuert.testing.conformance.builders import ask, complete, job
from tests.support.waiting import WAIT

_FILES = (str(Path(queuert.state.sqlite.__file__).parent), "contextlib.py")


class Interrupted(BaseException):
    """Raised by a signal handler."""


def interrupted(call: Callable[[], object], number: int) -> bool:
    """Make the call, and raise at the moment of this number. Returns False if it has fewer.

    Python runs signal handlers when a function has begun and when one of C has returned: the moments of a profiler.
    """
    seen = 0

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal seen
        if event in ("call", "c_return") and any(part in frame.f_code.co_filename for part in _FILES):
            seen += 1
            if seen == number:
                raise Interrupted

    sys.setprofile(look)
    try:
        call()
    except (Interrupted, StateError):
        pass  # SQLite makes an error of its own of what a function raises that it has called.
    finally:
        sys.setprofile(None)
    return seen >= number


@pytest.fixture(params=["file", "memory"])
def stored(request: pytest.FixtureRequest, path: Path) -> Iterator[tuple[SQLiteStore, Callable[[], None]]]:
    """A store that does not wait for locks, and what checks that nobody holds one of it."""
    in_file = request.param == "file"
    state = SQLiteState(path if in_file else ":memory:", answer_timeout=0.01)
    store = state.sync_store()
    store.open()

    def check() -> None:
        if in_file:
            with closing(sqlite3.connect(path, timeout=0.0, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                other.execute("ROLLBACK")
        store.start_jobs([job()])
        store.count_jobs()
        link = store._links.main
        assert not link.connection.in_transaction
        # The thread that was interrupted is not the only one that goes on.
        thread = threading.Thread(target=store.start_jobs, args=([job()],), daemon=True)
        thread.start()
        thread.join(WAIT)
        assert not thread.is_alive()
        store.count_jobs()

    yield store, check
    store.close()
    state.close()


def _start(store: SQLiteStore) -> None:
    store.start_jobs([job()])


def _read(store: SQLiteStore) -> None:
    store.count_jobs()


def _complete(store: SQLiteStore) -> None:
    (one,) = store.claim(ask(limit=1))
    with store.transaction(one) as transaction:
        transaction.finish(complete(one), last=True)


@pytest.mark.parametrize("call", [_start, _read, _complete])
def test_a_call_leaves_no_lock_wherever_a_signal_handler_raises(
    stored: tuple[SQLiteStore, Callable[[], None]], call: Callable[[SQLiteStore], None]
) -> None:
    store, check = stored
    number = 1
    while True:
        store.start_jobs([job()])
        if not interrupted(lambda: call(store), number):
            break
        try:
            check()
        except (sqlite3.OperationalError, StateUnavailableError) as error:
            raise AssertionError(f"a lock is left by an exception at moment {number}") from error
        number += 1
    assert number > 10


@pytest.mark.parametrize("level", [None, "DEFERRED"])
def test_a_callers_connection_keeps_no_lock_wherever_a_signal_handler_raises(
    path: Path, level: Literal["DEFERRED"] | None
) -> None:
    """That of a driver that begins transactions has none that its caller did not want to begin, or has begun."""
    store = SQLiteState(path).sync_store()
    store.open()
    with closing(sqlite3.connect(path, isolation_level=level)) as callers:
        number = 1
        while interrupted(lambda: store.start_jobs([job()], connection=callers), number):
            if level is None:
                assert not callers.in_transaction, f"moment {number}"
            callers.rollback()
            number += 1
    assert number > 10
    store.close()


def test_a_fork_leaves_no_lock_wherever_a_signal_handler_raises(path: Path) -> None:
    """Python forks none the less. The child may not use a file that may still be open."""
    store = SQLiteState(path, answer_timeout=0.01).sync_store()
    store.open()
    number = 1
    while interrupted(connection._before_fork, number):  # The last time it closes all.
        if connection._suspended and not all(link._suspended for link in (store._links.main, store._links.reader)):
            assert str(path) in connection._held_at_fork
        with suppress(RuntimeError):  # It was interrupted before it began.
            connection._after_fork()
        store.start_jobs([job()])
        store.count_jobs()
        number += 1
    connection._after_fork()
    assert number > 10
    store.close()
