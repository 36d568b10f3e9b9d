"""An interrupted demo says so, whatever was interrupted."""

from __future__ import annotations

import os
import signal

import pytest

from queuert.demo.show import signals_interrupt
from queuert.errors import StateUnavailableError


def interrupted_call(number: signal.Signals) -> None:
    """What psycopg may make of an interrupt."""
    with signals_interrupt():
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt:
            raise StateUnavailableError("the connection is lost") from None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_error_that_an_interrupt_became_is_the_interrupt(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        interrupted_call(number)
    assert isinstance(interrupted.value.__cause__, StateUnavailableError)
    assert signal.getsignal(number) is before


def test_an_error_without_an_interrupt_is_itself() -> None:
    with pytest.raises(StateUnavailableError), signals_interrupt():
        raise StateUnavailableError("the connection is lost")
