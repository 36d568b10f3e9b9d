"""No part of a password is in an error, whatever a user has mistyped in an address, nor in what it comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from queuert import PostgresState, migrations
from queuert.errors import ConfigurationError, StateUnavailableError
from queuert.migrations import checked_dsn, forget_login
from queuert.passwords import current_password

SECRET = "TopS3cret"


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://u:p@{SECRET}@127.0.0.1:1/x",
        f"postgresql://u:p@{SECRET}@127.0.0.1:1,127.0.0.1:2/x",
        f"postgresql://u:{SECRET}/p@127.0.0.1/x",
        f"postgresql://u:p@h:{SECRET}@127.0.0.1/x",
        f"host=p@{SECRET} dbname=x",
    ],
)
def test_a_part_of_a_password_is_taken_for_no_host_or_port(dsn: str) -> None:
    with pytest.raises(ConfigurationError, match="write %40") as caught:
        PostgresState(dsn)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "dsn", ["host=@abstract", "host=/run,@abstract port=1,2", "postgresql://u:p%40ss@h:5432/x", "port=''", "host=h"]
)
def test_what_libpq_understands_is_accepted(dsn: str) -> None:
    assert checked_dsn(dsn)


def shown_by_reports(error: BaseException | None) -> str:
    """What a tool that reports errors may show of one, and of those that it comes from."""
    shown = ""
    while error is not None:
        shown += f"{error!r} {vars(error)!r} {error.args!r} {getattr(error, 'object', '')!r}"
        pgconn = getattr(error, "pgconn", None)
        shown += repr(pgconn and pgconn.info)
        error = error.__cause__ or error.__context__
    return shown


@pytest.mark.parametrize(
    "connect", [lambda dsn: PostgresState(dsn).sync_store().open(), migrations.status], ids=["store", "migrations"]
)
def test_an_error_of_a_login_keeps_no_connection(connect: Callable[[str], object]) -> None:
    with pytest.raises(StateUnavailableError) as caught:
        connect(f"postgresql://u:{SECRET}@127.0.0.1:1,127.0.0.1:1/x")
    assert SECRET not in shown_by_reports(caught.value)


@pytest.mark.parametrize("end", ["\0", "\ud800"], ids=["NUL", "surrogate"])
def test_a_password_that_no_driver_can_send_is_refused(end: str) -> None:
    with pytest.raises(StateUnavailableError, match="must return text without a") as caught:
        current_password(lambda: SECRET + end)
    assert SECRET not in shown_by_reports(caught.value)


def test_errors_that_refer_to_each_other_are_no_endless_loop() -> None:
    """SQLAlchemy sets the cause of its error to the driver's, and callers raise that one from it."""
    one, other = psycopg.OperationalError("one"), psycopg.OperationalError("other")
    one.__cause__, other.__cause__ = other, one
    forget_login(one)


def test_the_connection_of_an_error_that_the_caller_handles_stays() -> None:
    theirs, ours = psycopg.errors.UniqueViolation("theirs"), psycopg.errors.UniqueViolation("ours")
    connection: Any = object()
    theirs._pgconn, ours._pgconn, ours.__context__ = connection, connection, theirs
    forget_login(ours)
    assert (theirs._pgconn, ours._pgconn) == (connection, None)


@pytest.mark.parametrize("host", ["@abstract", "/run/user@1000/postgres"])
def test_hosts_of_sockets_may_have_an_at(host: str) -> None:
    assert checked_dsn(f"host={host} dbname=x")["host"] == host
