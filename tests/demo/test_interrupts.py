"""An interrupted demo says so, whatever was interrupted."""

from __future__ import annotations

import logging
import os
import signal

import psycopg
import psycopg_pool
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


def leave_a_statement_in_its_middle(dsn: str, number: signal.Signals | None) -> None:
    with psycopg_pool.ConnectionPool(dsn, min_size=1) as pool, pool.connection() as connection:
        connection.pgconn.send_query(b"SELECT pg_sleep(60)")
        if number is not None:
            os.kill(os.getpid(), number)


def test_an_interrupted_statement_is_no_warning(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """What the driver says of a connection that it discards is for others: whoever interrupts knows why."""
    before = logging.getLogger("psycopg").level
    with pytest.raises(KeyboardInterrupt), signals_interrupt():
        leave_a_statement_in_its_middle(dsn, signal.SIGINT)
    assert caplog.messages == []
    assert logging.getLogger("psycopg").level == before
    with pytest.raises(psycopg.OperationalError), signals_interrupt():
        leave_a_statement_in_its_middle(dsn, None)
    assert caplog.messages != []


def test_an_error_without_an_interrupt_is_itself() -> None:
    with pytest.raises(StateUnavailableError), signals_interrupt():
        raise StateUnavailableError("the connection is lost")
