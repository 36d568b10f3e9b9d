"""Stores whose calls run in threads of their own."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from queuert.state import threaded

WAIT = 20.0


def test_a_call_while_a_thread_starts_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may run then, and a coroutine that it closes may end a block."""
    crew = threaded._Crew("test", most=2)
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
    assert crew._count == 2
    crew.end()


def test_a_thread_that_cannot_start_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = threaded._Crew("test", most=1)

    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading, "Thread", Refused)
        with pytest.raises(RuntimeError):
            crew.submit(lambda: "refused")
    assert crew.submit(lambda: "taken").result(WAIT) == "taken"
    crew.end()
