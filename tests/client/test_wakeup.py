"""Waking who waits, from another thread and from the garbage collector."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

from queuert.client.wakeup import Wakeup
from tests.support.waiting import WAIT


def test_a_flag_is_set_once_however_often_it_was_set() -> None:
    wakeup = Wakeup()
    assert not wakeup.wait(0.0)
    assert not wakeup.wait(-1.0)
    wakeup.set()
    wakeup.set()
    assert wakeup.wait(WAIT)
    assert not wakeup.wait(0.0)


def test_a_waiter_is_woken_by_another_thread() -> None:
    wakeup = Wakeup()
    threading.Thread(target=wakeup.set, daemon=True).start()
    assert wakeup.wait(WAIT)


def test_a_flag_can_be_set_at_any_point_of_its_being_set_and_waited_for() -> None:
    """As the garbage collector does, when it closes a follower in the thread that wakes it."""
    wakeup = Wakeup()

    def set_again(frame: FrameType, event: str, argument: object) -> Any:
        wakeup.set()
        return set_again

    def set_and_wait() -> None:
        sys.settrace(set_again)
        wakeup.set()
        wakeup.wait(0.0)
        sys.settrace(None)

    thread = threading.Thread(target=set_and_wait, daemon=True)
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive()
