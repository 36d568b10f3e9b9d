"""The bell that ends a thread's wait."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator

import pytest

from queuert.notify.listener import Waker
from tests.notify.support import WAIT


@pytest.fixture
def waker() -> Iterator[Waker]:
    waker = Waker()
    yield waker
    waker.close()


def is_woken(waker: Waker) -> bool:
    return bool(select.select([waker], [], [], 0)[0])


def test_it_rings_until_it_is_cleared(waker: Waker) -> None:
    assert not is_woken(waker)
    waker.wake()
    assert is_woken(waker)
    waker.clear()
    assert not is_woken(waker)
    waker.wake()
    assert is_woken(waker)


def test_rings_count_once_however_many(waker: Waker) -> None:
    for _ in range(100_000):
        waker.wake()
    waker.clear()
    assert not is_woken(waker)


def test_it_wakes_a_thread(waker: Waker) -> None:
    thread = threading.Thread(target=waker.wait, args=[WAIT * 10], daemon=True)
    thread.start()
    waker.wake()
    thread.join(WAIT)
    assert not thread.is_alive()


def test_after_close_it_is_silent() -> None:
    waker = Waker()
    waker.close()
    waker.wake()
    waker.close()
    assert waker.fileno() == -1
