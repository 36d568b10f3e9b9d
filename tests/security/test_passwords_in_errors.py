"""No part of a password is in an error, whatever a user has mistyped in an address, nor in what it comes from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest

from queuert import PostgresState, migrations
from queuert.errors import ConfigurationError, StateUnavailableError
from queuert.ids import new_token
from queuert.migrations import checked_dsn, forget_login
from queuert.notify.listener import Waker
from queuert.notify.postgres import ListenConnection
from queuert.passwords import current_password
from queuert.state import Store
from queuert.state.postgres.bulk import BulkSettings, bulk_session
from queuert.state.postgres.protocol import AsyncPooledConnection, PooledConnection
from queuert.state.postgres.roles import grant_roles
from queuert.state.postgres.settings import PostgresSettings
from queuert.state.types import ClaimRequest, Finish, FinishKind, NewJob
from queuert.testing.clock import times_of
from queuert.testing.databases import TemplateDatabases
from queuert.testing.fixtures import fresh_stores
from tests.support.store_harness import opened

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


def listen(dsn: str) -> None:
    """Connect as the listener of notifications does."""
    with closing(Waker()) as waker:
        ListenConnection.connect(PostgresSettings(dsn=dsn), waker)


LOGINS: dict[str, Callable[[str], object]] = {
    "store": lambda dsn: PostgresState(dsn).sync_store().open(),
    "migrations": migrations.status,
    "pool": PooledConnection.connect,
    "async pool": lambda dsn: asyncio.run(AsyncPooledConnection.connect(dsn)),
    "listener": listen,
    "bulk write": lambda dsn: bulk_session(BulkSettings(dsn, "queuert")).__enter__(),
    "doctor": lambda dsn: PostgresState(dsn).diagnose(),
    "roles": grant_roles,
    "times of a queue": lambda dsn: times_of(PostgresState(dsn)).shift(1.0, leases=False),
    "databases of tests": lambda dsn: TemplateDatabases(dsn, print),
    "stores of tests": lambda dsn: fresh_stores(dsn, print).__enter__(),
}


@pytest.mark.parametrize("login", LOGINS)
@pytest.mark.parametrize("hosts", ["127.0.0.1:1", "127.0.0.1:1,127.0.0.1:1"], ids=["one host", "two hosts"])
def test_an_error_of_a_login_keeps_no_connection(login: str, hosts: str) -> None:
    with pytest.raises((StateUnavailableError, psycopg.OperationalError)) as caught:
        LOGINS[login](f"postgresql://u:{SECRET}@{hosts}/x")
    assert SECRET not in shown_by_reports(caught.value)


def test_an_error_of_a_commit_in_doubt_keeps_no_connection(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Psycopg gives these none so far."""

    def lost(connection: PooledConnection) -> None:
        error = psycopg.OperationalError("the connection is lost")
        error._pgconn = connection.pgconn
        connection.close()
        raise error

    def commit(store: Store) -> None:
        store.start_jobs([NewJob("a", "work", "1", id_chosen=True)])
        [job] = store.claim(ClaimRequest({"work": 60.0}, 1, "me", new_token()))
        with store.transaction(job) as transaction:
            transaction.finish(Finish(job, FinishKind.COMPLETE, output="1"))
            monkeypatch.setattr(PooledConnection, "commit", lost)

    with closing(opened(dsn)) as store, pytest.raises(StateUnavailableError, match="did not take effect") as caught:
        commit(store)
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)
    assert caught.value.__cause__.pgconn is None


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
