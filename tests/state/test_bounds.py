"""Which transactions have bounds that the server keeps: ours, however they begin, and never a caller's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from queuert import migrations
from queuert.deduplication import Deduplicate
from queuert.errors import StateError
from queuert.ids import new_token
from queuert.state.postgres import PostgresState, sync_statements
from queuert.state.postgres.bounds import Bounds
from queuert.state.postgres.sync_store import PostgresStore
from queuert.state.types import ClaimRequest, Finish, FinishKind, NewJob

_HAS_TRANSACTION_TIMEOUT = 170000

_NOTED = """
create table noted (idle text, lock text, whole text);
create function note() returns trigger language plpgsql as $$ begin
    insert into public.noted
    values (
        current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout'),
        current_setting('transaction_timeout', true)
    );
    return new;
end $$;
create trigger note before insert on queuert.job for each row execute function note();
"""


@pytest.fixture
def store(dsn: str) -> Iterator[PostgresStore]:
    store = PostgresState(dsn, answer_timeout=15.0).sync_store()
    store.open()
    yield store
    store.close()


@pytest.fixture
def noted(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection by which is seen what was set when a job was written."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_NOTED)
        yield connection


def keyed(id: str) -> list[NewJob]:
    return [NewJob(id, "work", "1", deduplication=Deduplicate(id))]


def seen(noted: psycopg.Connection[Any]) -> list[Any]:
    return noted.execute("select idle, lock from noted").fetchall()


def seen_as_a_whole(noted: psycopg.Connection[Any]) -> list[str]:
    """The timeouts of the whole transactions, on servers that have it."""
    if noted.info.server_version < _HAS_TRANSACTION_TIMEOUT:
        pytest.skip("Postgres has transaction_timeout since version 17")
    return [whole for (whole,) in noted.execute("select whole from noted")]


def test_a_transaction_of_a_store_has_bounds_by_its_answer_timeout(
    store: PostgresStore, noted: psycopg.Connection[Any]
) -> None:
    store.start_jobs(keyed("a"))
    store.start_pipelined([keyed("b")])
    assert seen(noted) == [("5s", "15s"), ("5s", "0")]


def test_a_transaction_is_bounded_as_a_whole_by_four_answer_timeouts(
    store: PostgresStore, dsn: str, noted: psycopg.Connection[Any]
) -> None:
    """By the session, and behind a pooler or on a caller's connection by the transaction itself."""
    assert store._fetch(b"SHOW transaction_timeout") == [("1min",)]
    store.start_jobs([NewJob("a", "work", "1")])
    store.start_jobs(keyed("b"))
    with psycopg.connect(dsn, autocommit=True) as connection:
        store.start_jobs(keyed("c"), connection=connection)
        assert connection.execute("SHOW transaction_timeout").fetchone() == ("0",)
    with psycopg.connect(dsn) as connection:
        store.start_jobs(keyed("d"), connection=connection)
    assert seen_as_a_whole(noted) == ["1min", "1min", "2min", "0"]


def test_a_start_in_parts_may_take_any_time(
    store: PostgresStore, noted: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its timeout begins again before a part, if half of it is over."""
    restarted = []

    def send(connection: Any, text: Any, values: Any = None, **more: Any) -> Any:
        restarted.extend([values] if text == store._sql.restart_timeout else [])
        return sends(connection, text, values, **more)

    sends = sync_statements._send
    monkeypatch.setattr(sync_statements, "_send", send)
    store.start_pipelined([keyed("a"), keyed("b")])
    assert restarted == []
    monkeypatch.setattr(sync_statements, "_RESTARTED_AFTER", 0.0)
    store.start_pipelined([keyed("c"), keyed("d")])
    assert restarted == [{"whole": "60000"}] * 2
    assert seen_as_a_whole(noted) == ["1min"] * 4


@pytest.mark.parametrize(("own", "restarts"), [("60000", True), ("70000", False), ("0", False)])
def test_only_our_own_timeout_begins_again(
    store: PostgresStore, noted: psycopg.Connection[Any], own: str, restarts: bool
) -> None:
    assert seen_as_a_whole(noted) == []
    with noted.transaction():
        noted.execute("SELECT set_config('transaction_timeout', %s, true)", [own])
        found = noted.execute(store._sql.restart_timeout, {"whole": "60000"}).fetchall()
        assert found == ([("0", "1min")] if restarts else [])


def test_a_handler_may_take_any_time(store: PostgresStore, noted: psycopg.Connection[Any]) -> None:
    store.start_jobs([NewJob("a", "work", "1")])
    [claimed] = store.claim(ClaimRequest({"work": 60.0}, 1, "me", new_token()))
    with store.transaction(claimed) as held:
        assert held.connection.execute("SELECT current_setting('transaction_timeout', true)").fetchone() in [
            ("0",),
            (None,),
        ]
        held.finish(Finish(claimed, FinishKind.COMPLETE, output="1"))


def test_a_bound_on_whole_transactions_of_the_role_is_kept(dsn: str, noted: psycopg.Connection[Any]) -> None:
    """Also for parts, and for handlers."""
    store = PostgresState(f"{dsn}?options=-ctransaction_timeout%3D70000").sync_store()
    store.open()
    try:
        store.start_jobs(keyed("a"))
        store.start_pipelined([keyed("b"), keyed("c")])
        [claimed] = store.claim(ClaimRequest({"work": 60.0}, 1, "me", new_token()))
        with store.transaction(claimed) as held:
            assert held.connection.execute("SHOW transaction_timeout").fetchone() == ("70s",)
            held.finish(Finish(claimed, FinishKind.COMPLETE, output="1"))
    finally:
        store.close()
    assert seen_as_a_whole(noted) == ["70s"] * 3


def test_a_lower_lock_timeout_of_the_role_is_kept(dsn: str, noted: psycopg.Connection[Any]) -> None:
    store = PostgresState(f"{dsn}?options=-clock_timeout%3D700").sync_store()
    store.open()
    try:
        store.start_jobs(keyed("a"))
    finally:
        store.close()
    assert seen(noted) == [("10s", "700ms")]


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_transaction_on_a_callers_pool_has_bounds_until_it_ends(
    store: PostgresStore, dsn: str, noted: psycopg.Connection[Any], autocommit: bool
) -> None:
    with ConnectionPool(dsn, min_size=1, max_size=1, kwargs={"autocommit": autocommit}, open=True) as pool:
        store.start_jobs(keyed("a"), connection=pool)
        with pool.connection() as connection:
            assert connection.execute("show idle_in_transaction_session_timeout").fetchone() == ("0",)
    assert seen(noted) == [("10s", "30s")]


@pytest.mark.parametrize("isolation", [None, psycopg.IsolationLevel.REPEATABLE_READ])
def test_a_transaction_on_a_callers_autocommit_connection_has_bounds_until_it_ends(
    store: PostgresStore, dsn: str, noted: psycopg.Connection[Any], isolation: psycopg.IsolationLevel | None
) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.isolation_level = isolation
        store.start_jobs(keyed("a"), connection=connection)
        assert connection.execute("show idle_in_transaction_session_timeout").fetchone() == ("0",)
    assert seen(noted) == [("10s", "30s")]


def test_nothing_is_set_in_a_callers_transaction(
    store: PostgresStore, dsn: str, noted: psycopg.Connection[Any]
) -> None:
    names = ("idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout")
    with psycopg.connect(dsn) as connection:
        store.start_jobs(keyed("a"), connection=connection)
        store.start_jobs([NewJob("c", "work", "1", blockers=("a",))], connection=connection)
        store.trigger_jobs(["a"], connection=connection)
        store.cancel_chains(["a"], reason="for a test", connection=connection)
        store.retry_chains(["a"], connection=connection)
        store.delete_chains(["c"], connection=connection)
        assert [connection.execute(f"show {name}".encode()).fetchone() for name in names] == [("0",)] * 3
    assert seen(noted) == [("0", "0"), ("0", "0")]


def test_a_migrator_that_stands_still_is_ended(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have locked the tables."""
    configured = migrations._config
    connections: list[Any] = []

    def config(schema: str, **given: Any) -> Any:
        connections.append(given["connect"]())
        return configured(schema, **given)

    monkeypatch.setattr(migrations, "_config", config)
    migrations.upgrade(dsn)
    with connections[0] as connection:
        assert connection.execute("show idle_in_transaction_session_timeout").fetchone() == ("10s",)


@pytest.mark.parametrize(("answer", "idle"), [(30.0, 10.0), (300.0, 100.0), (0.5, 1.0)])
def test_the_idle_bound_is_a_third_of_the_answer_timeout_and_a_second_at_least(answer: float, idle: float) -> None:
    assert Bounds.of(answer) == Bounds(idle, answer, 4 * answer)


def test_a_session_whose_client_reads_no_answer_has_a_bound(store: PostgresStore, dsn: str) -> None:
    """What a handler's transaction reads may be read as slowly as its lease allows."""
    store.start_jobs([NewJob("a", "work", "1")])
    assert store._fetch(b"SHOW tcp_user_timeout") == [("5000",)]
    [job] = store.claim(ClaimRequest({"work": 60.0}, 1, "me", new_token()))
    with store._connections.connection(), store.transaction(job) as held:  # so that it gets a new connection
        assert held.connection.execute("SHOW tcp_user_timeout").fetchall() == [("60000",)]
        held.finish(Finish(job, FinishKind.COMPLETE, output="1"))
    assert store._fetch(b"SHOW tcp_user_timeout") == [("5000",)]
    own = PostgresState(f"{dsn}?options=-ctcp_user_timeout%3D7000").sync_store()
    own.open()
    assert own._fetch(b"SHOW tcp_user_timeout") == [("7000",)]
    own.close()


@pytest.mark.parametrize("prepared", [5, None])
def test_each_session_of_ours_has_its_bounds_whatever_uses_it_first(dsn: str, prepared: int | None) -> None:
    """Without prepared statements as well, and in the statements of a handler's block on a new connection."""
    query: LiteralString = "SELECT current_setting('client_connection_check_interval'), current_setting('jit')"
    store = PostgresState(dsn, prepare_threshold=prepared).sync_store()
    store.open()
    store.start_jobs([NewJob("a", "work", "1")])
    [job] = store.claim(ClaimRequest({"work": 60.0}, 1, "me", new_token()))
    [(interval, jit)] = store._fetch(query.encode())
    assert (interval, jit) == ("5s", "on" if prepared is None else "off")
    with store._connections.connection(), store.transaction(job) as held:  # so that it gets a new connection
        assert held.connection.execute(query).fetchall() == [("5s", "on")]
        held.finish(Finish(job, FinishKind.COMPLETE, output="1"))
    assert store._fetch(b"SHOW tcp_user_timeout") == [("10000",)]
    store.close()


def test_a_session_whose_settings_failed_gets_them_at_its_next_use(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PostgresState(dsn).sync_store(max_connections=1)
    store.open()
    with store._connections.connection() as connection:
        connection.execute("SET client_connection_check_interval = 0")
        connection.configured = False  # As before its first use.
    with monkeypatch.context() as patch:
        patch.setattr(store._connections, "_settings_query", b"SELECT 1 / 0, %s::text, %s::text, %s::int")
        with pytest.raises(StateError, match="division by zero"), store._connections.connection():
            raise AssertionError("it was used")
    assert store._fetch(b"SHOW client_connection_check_interval") == [("5s",)]
    store.close()
