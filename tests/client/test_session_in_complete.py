"""A session of SQLAlchemy's in the transaction of ``attempt.complete()``, sync and async; and Alembic beside it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Column, MetaData, String, Table, text
from sqlalchemy.exc import IntegrityError, SAWarning
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from queuert import Attempt, JobType, JobTypes, Outcome, PostgresState, Processors
from queuert.errors import ConfigurationError, UnsupportedConnectionError
from queuert.integrations.sqlalchemy import async_session_on, include_name, session_on
from queuert.testing import AsyncJobQueue
from tests.client import callers

work = JobType("work", input=str, output=str)
other = JobType("other", input=str, output=str)
JOB_TYPES = JobTypes(work, other)
INSERT = "insert into mine values (:name)"


class Mishap(Exception):
    """Something goes wrong in a handler."""


@pytest.fixture
def rows(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table mine (name text primary key)")
        yield lambda: [row[0] for row in connection.execute("select name from mine order by 1")]


def handlers(how: str) -> Processors:
    processors = Processors(JOB_TYPES)

    @processors.handles(work)
    def do_work(attempt: Attempt[str, str]) -> Outcome[str]:
        with attempt.complete() as tx:
            tx.connection.execute("insert into mine values ('before')")
            with session_on(tx.connection) as session:
                session.execute(text(INSERT), {"name": "session"})
                if how == "rollback":
                    session.rollback()
                if how == "conflict":
                    session.commit()
                    with pytest.raises(IntegrityError):
                        session.execute(text(INSERT), {"name": "session"})
                    session.rollback()
                if how == "raise":
                    raise Mishap
            tx.connection.execute("insert into mine values ('after')")
            return tx.finish("done")

    return processors


@pytest.mark.parametrize(
    ("how", "outcome", "left"),
    [
        ("commit", "completed", ["after", "before", "session"]),
        ("rollback", "completed", ["after", "before"]),
        ("conflict", "completed", ["after", "before", "session"]),
        ("raise", "retried", []),
    ],
)
async def test_the_session_writes_with_the_completion(
    dsn: str, rows: Any, how: str, outcome: str, left: list[str]
) -> None:
    async with AsyncJobQueue(PostgresState(dsn), JOB_TYPES) as queue:
        chain = await queue.client.start_chain(work, "a")
        ran = await queue.process_job(handlers(how), chain)
        assert (ran.outcome, rows()) == (outcome, left), ran.error


async def test_one_attempt_after_the_other(dsn: str, rows: Any) -> None:
    """The engine is the same, the connection each attempt's own."""
    async with AsyncJobQueue(PostgresState(dsn), JOB_TYPES) as queue:
        chain = await queue.client.start_chain(work, "a")
        assert (await queue.process_job(handlers("raise"), chain)).outcome == "retried"
        assert (await queue.process_job(handlers("commit"), chain)).outcome == "completed"
        assert rows() == ["after", "before", "session"]


@pytest.mark.parametrize(("undo", "left"), [(False, ["session"]), (True, [])])
async def test_an_asynchronous_session(dsn: str, rows: Any, undo: bool, left: list[str]) -> None:
    processors = Processors(JOB_TYPES)

    @processors.handles(work)
    async def do_work(attempt: Attempt[str, str]) -> Outcome[str]:
        async with attempt.complete() as tx:
            async with async_session_on(tx.connection) as session:
                await session.execute(text(INSERT), {"name": "session"})
                if undo:
                    await session.rollback()
            return tx.finish("done")

    async with AsyncJobQueue(PostgresState(dsn), JOB_TYPES) as queue:
        chain = await queue.client.start_chain(work, "a")
        ran = await queue.process_job(processors, chain)
        assert (ran.outcome, rows()) == ("completed", left), ran.error


async def test_attempts_after_each_other_leave_nothing_on_the_connection(dsn: str, rows: Any) -> None:
    """The pool's connections live on: an engine adds a handler of notices to each one that is new to it."""
    processors = Processors(JOB_TYPES)
    seen: list[tuple[int, int]] = []

    @processors.handles(work)
    async def do_work(attempt: Attempt[str, str]) -> Outcome[str]:
        async with attempt.complete() as tx:
            for _ in range(3):
                async with async_session_on(tx.connection, async_sessionmaker(expire_on_commit=False)) as session:
                    assert isinstance(session, AsyncSession)
                    assert not session.sync_session.expire_on_commit
                    await session.execute(text("do $$ begin raise notice 'seen'; end $$"))
            seen.append((len(tx.connection._notice_handlers), id(tx.connection)))
            return tx.finish("done")

    @processors.handles(other)
    def do_other(attempt: Attempt[str, str]) -> Outcome[str]:
        with attempt.complete() as tx:
            for _ in range(3):
                with session_on(tx.connection, sessionmaker(autoflush=False)) as session:
                    assert isinstance(session, Session)
                    assert not session.autoflush
            seen.append((len(tx.connection._notice_handlers), id(tx.connection)))
            return tx.finish("done")

    async with AsyncJobQueue(PostgresState(dsn), JOB_TYPES) as queue:
        for job_type in (work, work, other, other):
            chain = await queue.client.start_chain(job_type, "a")
            assert (await queue.process_job(processors, chain)).outcome == "completed"
    assert [handlers for handlers, _ in seen] == [0, 0, 0, 0]


async def test_the_wrong_connection(dsn: str) -> None:
    """The error says which of the two to use."""
    with psycopg.connect(dsn) as connection:
        with pytest.raises(UnsupportedConnectionError, match="use session_on in a plain function"):
            async with async_session_on(connection):
                pass
        async with await psycopg.AsyncConnection.connect(dsn) as other_mode:
            with (
                pytest.raises(UnsupportedConnectionError, match="use async_session_on in a coroutine"),
                session_on(other_mode),
            ):
                pass
        with pytest.raises(UnsupportedConnectionError, match=r"on Postgres, got builtins\.int"), session_on(5):
            pass


def test_alembic_leaves_the_schema_alone(dsn: str) -> None:
    """Without it, autogenerate proposes to drop all of our tables; the program's own are compared."""
    metadata = MetaData()
    Table("mine", metadata, Column("name", String, primary_key=True))
    with callers.engine(dsn) as engine, engine.connect() as connection:
        for schema, expected in (("queuert", {None}), ("another", {"queuert", None})):
            options = {"include_schemas": True, "include_name": include_name(schema)}
            context = MigrationContext.configure(connection, opts=options)
            with warnings.catch_warnings():
                if schema == "another":  # SQLAlchemy does not know xid8.
                    warnings.simplefilter("ignore", SAWarning)
                found: list[Any] = compare_metadata(context, metadata)
            changed = {change[1] for change in found if change[0] in ("add_table", "remove_table")}
            assert {table.schema for table in changed} == expected
    with pytest.raises(ConfigurationError):
        include_name("No Schema")
