"""Stores whose calls run in threads of their own."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from queuert.state import threaded

WAIT = 20.0


def test_a_call_while_a_thread_starts_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may run then, and a coroutine that it closes may end a block."""
    crew, release = threaded._Crew("test", most=3), threading.Event()
    crew.submit(lambda: release.wait(WAIT))  # The thread that there is.
    nested: list[Future[str]] = []

    class Starting(threading.Thread):
        def start(self) -> None:
            if not nested:
                nested.append(crew.submit(lambda: "nested"))
            super().start()

    outer = Future[str]()

    def call() -> None:
        outer.set_result(crew.submit(lambda: "outer").result(WAIT))

    caller = threading.Thread(target=call, daemon=True)  # Before, it waited for its own lock for ever.
    monkeypatch.setattr(threading, "Thread", Starting)
    caller.start()
    assert outer.result(WAIT) == "outer"
    assert nested[0].result(WAIT) == "nested"
    assert crew._count == 3
    release.set()
    crew.end()


class Refused(threading.Thread):
    """A thread that the system, or an interpreter that ends, does not start."""

    def start(self) -> None:
        raise RuntimeError("can't start new thread")


def test_a_call_waits_for_another_thread_if_none_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the one that could not start takes no place."""
    crew, release = threaded._Crew("test", most=2), threading.Event()
    first = crew.submit(lambda: release.wait(WAIT))
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Thread", Refused)
        waits = crew.submit(lambda: "taken")
    assert not waits.done()
    other = crew.submit(lambda: "another thread")
    assert other.result(WAIT) == "another thread"
    assert waits.result(WAIT) == "taken"
    assert crew._count == 2
    release.set()
    assert first.result(WAIT)
    crew.end()


def test_calls_that_waited_take_no_threads_from_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once threads can start again, each call that is under way has one."""
    crew, release = threaded._Crew("test", most=9), threading.Event()
    busy = crew.submit(lambda: release.wait(WAIT))
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Thread", Refused)
        waiting = [crew.submit(lambda: None) for _ in range(3)]
    release.set()
    assert busy.result(WAIT)
    assert [one.result(WAIT) for one in waiting] == [None] * 3
    together = threading.Barrier(6, timeout=WAIT)
    assert sorted(one.result(WAIT) for one in [crew.submit(together.wait) for _ in range(6)]) == list(range(6))
    crew.end()


def test_without_any_thread_a_store_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Thread", Refused)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        threaded._Crew("test", most=2)
