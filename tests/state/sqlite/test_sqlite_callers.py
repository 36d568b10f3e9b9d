"""What a caller may give as ``connection=``, and that it commits and rolls back with it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from queuert import AsyncClient, Client, InProcessWorker
from queuert.errors import ChainNotFoundError, StateError, StateUnavailableError, UnsupportedConnectionError
from queuert.notify import InProcessNotify
from queuert.state.sqlite import SQLiteState
from queuert.state.sqlite.notifications import KEPT
from queuert.testing.conformance.builders import ask, complete, go_on, job
from tests.state.sqlite.application import JOB_TYPES, single
from tests.state.sqlite.test_sqlite_end_to_end import SLOWLY, handlers
from tests.support.waiting import WAIT


@pytest.fixture
def client(path: Path) -> Iterator[Client]:
    with Client(SQLiteState(path, answer_timeout=0.5, synchronous="normal"), JOB_TYPES) as client:
        client.count_jobs()
        yield client


@pytest.fixture
def connection(client: Client, path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, timeout=0.5)
    connection.execute("CREATE TABLE mine (key TEXT)")
    yield connection
    connection.close()


def there(client: Client) -> int:
    return sum(one.count for one in client.count_jobs())


def test_it_commits_with_the_caller(client: Client, connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO mine VALUES ('a')")
    chain = client.start_chain(single, 1, connection=connection)
    assert there(client) == 0
    connection.commit()
    assert client.get_chain(chain.id).id == chain.id


def test_it_rolls_back_with_the_caller(client: Client, connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO mine VALUES ('a')")
    client.start_chain(single, 1, connection=connection)
    connection.rollback()
    assert there(client) == 0
    assert connection.execute("SELECT * FROM mine").fetchall() == []


def test_it_begins_the_callers_transaction(client: Client, connection: sqlite3.Connection) -> None:
    """As the driver does before the first statement that writes."""
    client.start_chain(single, 1, connection=connection)
    assert connection.in_transaction
    connection.rollback()
    assert there(client) == 0


def test_a_refused_start_leaves_the_callers_transaction_whole(client: Client, connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO mine VALUES ('a')")
    with pytest.raises(ChainNotFoundError):
        client.start_chain(single, 1, blockers=["nowhere"], connection=connection)
    client.start_chain(single, 2, connection=connection)
    connection.commit()
    assert (there(client), connection.execute("SELECT key FROM mine").fetchall()) == (1, [("a",)])


def test_a_connection_of_single_statements(client: Client, path: Path) -> None:
    """Where the driver begins no transactions, each call is one of its own."""
    connection = sqlite3.connect(path, isolation_level=None)
    client.start_chain(single, 1, connection=connection)
    assert (there(client), connection.in_transaction) == (1, False)
    connection.execute("BEGIN")
    client.start_chain(single, 1, connection=connection)
    connection.execute("ROLLBACK")
    assert there(client) == 1
    connection.close()


@pytest.mark.parametrize("begins", [[], ["BEGIN"], ["BEGIN", "DELETE FROM mine"]], ids=", ".join)
def test_it_waits_for_another_that_writes(
    client: Client, connection: sqlite3.Connection, path: Path, begins: list[str]
) -> None:
    """As long as the caller's connection does, in a transaction and without."""
    connection.commit()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    callers = sqlite3.connect(path, isolation_level=None, timeout=WAIT, check_same_thread=False)
    wants = threading.Event()
    errors: list[Exception] = []

    def on_statement(statement: str) -> None:
        if "BEGIN IMMEDIATE" in statement or "DELETE" in statement:
            wants.set()

    def start() -> None:
        try:
            for statement in begins:
                callers.execute(statement)
            client.start_chain(single, 1, connection=callers)
            if begins:
                callers.execute("COMMIT")
        except Exception as error:
            errors.append(error)
        wants.set()

    callers.set_trace_callback(on_statement)
    starts = threading.Thread(target=start)
    starts.start()
    assert wants.wait(WAIT)
    holder.execute("COMMIT")
    starts.join(WAIT)
    assert errors == []
    assert (there(client), callers.in_transaction) == (1, False)
    holder.close()
    callers.close()


def test_a_transaction_that_has_read_too_early(client: Client, path: Path) -> None:
    """SQLite does not wait for it: what it has read would no longer hold."""
    callers = sqlite3.connect(path, isolation_level=None, timeout=WAIT)
    callers.execute("BEGIN")
    callers.execute("SELECT count(*) FROM queuert_job").fetchone()
    client.start_chain(single, 1)
    with pytest.raises(StateUnavailableError, match="BEGIN IMMEDIATE"):
        client.start_chain(single, 2, connection=callers)
    callers.execute("ROLLBACK")
    callers.execute("BEGIN IMMEDIATE")
    client.start_chain(single, 2, connection=callers)
    callers.execute("COMMIT")
    assert there(client) == 2
    callers.close()


def test_an_error_of_a_single_statement_undoes_it(client: Client, path: Path) -> None:
    callers = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(ChainNotFoundError):
        client.start_chain(single, 1, blockers=["nowhere"], connection=callers)
    assert (there(client), callers.in_transaction) == (0, False)
    callers.close()


def test_notifications_are_bounded_though_nobody_reads_them(path: Path) -> None:
    """With other notifications than those by the file, nobody else would delete them."""
    with Client(SQLiteState(path, synchronous="normal"), JOB_TYPES, notify=InProcessNotify()) as client:
        client.count_jobs()
        connection = sqlite3.connect(path)
        rows = [("x", "jobs", None)] * (KEPT + 5_000)
        connection.executemany("INSERT INTO queuert_notification (sender, topic, keys) VALUES (?, ?, ?)", rows)
        for _ in range(10):
            client.start_chain(single, 1, connection=connection)
        connection.commit()
        assert connection.execute("SELECT count(*) FROM queuert_notification").fetchone() == (KEPT,)
        connection.close()


def test_a_cursor_and_strange_rows(client: Client, connection: sqlite3.Connection) -> None:
    connection.row_factory = sqlite3.Row
    connection.text_factory = bytes
    chain = client.start_chain(single, 1, connection=connection.cursor())
    client.cancel_chain(chain.id, connection=connection)
    connection.commit()
    assert str(client.get_chain(chain.id).status) == "cancelled"
    assert isinstance(connection.execute("SELECT 'x'").fetchone()[0], bytes)


def test_sqlalchemy(client: Client, path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        client.start_chain(single, 1, connection=connection)
        connection.rollback()
        assert there(client) == 0
        client.start_chain(single, 1, connection=connection)
        connection.commit()
        assert there(client) == 1
    with Session(engine) as session:
        client.start_chain(single, 1, connection=session)
        session.commit()
    assert there(client) == 2
    engine.dispose()


def test_what_is_refused(client: Client, connection: sqlite3.Connection, path: Path, tmp_path: Path) -> None:
    other, memory = sqlite3.connect(tmp_path / "other.db"), sqlite3.connect(":memory:")
    closed = sqlite3.connect(path)
    closed.close()
    refused: list[tuple[Any, str]] = [
        (object(), "must be a sqlite3.Connection"),
        ("connection", "must be a sqlite3.Connection"),
        (sqlalchemy.text("x"), "must be a sqlite3.Connection"),
        (other, "other.db"),
        (memory, "in memory"),
        (closed, "closed database"),
    ]
    for given, reason in refused:
        with pytest.raises(UnsupportedConnectionError, match=reason):
            client.start_chain(single, 1, connection=given)
    assert there(client) == 0
    for one in (other, memory):
        one.close()


async def test_an_asynchronous_client(client: Client, path: Path) -> None:
    """It uses threads of its own: the connection must not be bound to one."""
    async with AsyncClient(SQLiteState(path), JOB_TYPES) as others:
        bound = sqlite3.connect(path)
        with pytest.raises(UnsupportedConnectionError, match="check_same_thread=False"):
            await others.start_chain(single, 1, connection=bound)
        bound.close()
        free = sqlite3.connect(path, check_same_thread=False)
        await others.start_chain(single, 1, connection=free)
        free.rollback()
        assert there(client) == 0
        await others.start_chain(single, 1, connection=free)
        free.commit()
        assert there(client) == 1
        free.close()


async def test_who_is_cancelled_leaves_nothing_behind(client: Client, path: Path) -> None:
    """A start in the caller's transaction has come to its end before the caller goes on, and rolls back."""
    connection = sqlite3.connect(path, check_same_thread=False, timeout=20.0)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    async with AsyncClient(SQLiteState(path, answer_timeout=20.0), JOB_TYPES) as others:
        starting = asyncio.create_task(others.start_chain(single, 1, connection=connection))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.sleep(0)
        holder.execute("ROLLBACK")
        with pytest.raises(asyncio.CancelledError):
            await starting
        # It has begun the transaction: there is something to roll back, and nothing comes after that.
        assert connection.in_transaction
        connection.rollback()
    holder.close()
    connection.close()
    assert there(client) == 0


def test_a_held_file_is_waited_for(client: Client, connection: sqlite3.Connection, path: Path) -> None:
    """As long as the caller's connection waits for anything."""
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StateUnavailableError, match="kept the database locked"):
        client.start_chain(single, 1, connection=connection)
    holder.execute("ROLLBACK")
    holder.close()
    client.start_chain(single, 1, connection=connection)
    connection.commit()
    assert there(client) == 1


async def test_notifications_come_with_the_commit(path: Path) -> None:
    """A worker that would sleep for an hour finds a job that was started in a caller's transaction."""
    state = SQLiteState(path, synchronous="normal")
    async with (
        AsyncClient(state, JOB_TYPES) as client,
        InProcessWorker(client, handlers(), poll_interval=SLOWLY),
    ):
        connection = sqlite3.connect(path, check_same_thread=False)
        chain = await client.start_chain(single, 4, connection=connection)
        connection.commit()
        connection.close()
        assert await chain.result(WAIT) == 8


# --- the block of a job ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "END", "BEGIN"])
def test_the_block_ends_its_transaction_itself(state: SQLiteState, statement: str) -> None:
    """A COMMIT of the caller's own, which nothing would fence, is refused; the block goes on."""
    store = state.sync_store()
    store.open()
    store.start_jobs([job()])
    [held] = store.claim(ask())
    with store.transaction(held) as transaction:
        transaction.connection.execute("CREATE TABLE mine (key TEXT)")
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            transaction.connection.execute(statement)
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            transaction.connection.commit()
        transaction.connection.execute("SAVEPOINT mine")
        transaction.connection.execute("ROLLBACK TO mine")
        transaction.finish(complete(held))
    assert [one.status.value for one in store.get_jobs([held.id]) if one] == ["completed"]
    store.close()


def test_what_rolls_back_all_of_it_is_reported(state: SQLiteState) -> None:
    """SQLite rolls back by itself after some errors; if that is swallowed, nothing seems to have been kept."""
    store = state.sync_store()
    store.open()
    store.start_jobs([job(), job()])
    for ends in (True, False):
        [held] = store.claim(ask(limit=1))
        block = store.transaction(held)
        transaction = block.__enter__()
        connection = transaction.connection
        connection.execute("CREATE TABLE mine (key TEXT PRIMARY KEY)")
        connection.execute("INSERT INTO mine VALUES ('a')")
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("INSERT OR ROLLBACK INTO mine VALUES ('a')")
        if ends:
            with pytest.raises(StateError, match="rolled back the whole transaction"):
                transaction.finish(complete(held))
        with pytest.raises(StateError, match="rolled back the whole transaction"):
            block.__exit__(None, None, None)
        assert [one.status.value for one in store.get_jobs([held.id]) if one] == ["running"]
    store.close()


def test_a_refused_finish_writes_nothing_of_it(state: SQLiteState) -> None:
    """What a finish had written before it was refused is undone; another one can be written in the same block."""
    store = state.sync_store()
    store.open()
    store.start_jobs([job(), job("other", id="taken")])
    [held] = store.claim(ask())
    with store.transaction(held) as transaction:
        with pytest.raises(ValueError, match="taken"):
            transaction.finish(go_on(held, job("next", id="taken")))
        transaction.finish(complete(held))
    assert [one.status.value for one in store.get_jobs([held.id]) if one] == ["completed"]
    store.close()


def test_what_the_caller_set_is_not_for_the_next_one(state: SQLiteState) -> None:
    store = state.sync_store()
    store.open()
    store.start_jobs([job(), job()])
    for _ in range(2):
        [held] = store.claim(ask(limit=1))
        with store.transaction(held) as transaction:
            assert transaction.connection.execute("SELECT 'x'").fetchone() == ("x",)
            transaction.connection.row_factory = sqlite3.Row
            transaction.connection.text_factory = bytes
            transaction.finish(complete(held))
    assert store.count_jobs()[0].type == "work"
    store.close()
