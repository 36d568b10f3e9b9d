"""A session of SQLAlchemy's in the transaction of ``attempt.complete()``, sync and async."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.ext.asyncio import create_async_engine as async_engine
from sqlalchemy.pool import NullPool

from examples.sqlalchemy_in_complete import Held, session_on
from queuert import Attempt, JobType, JobTypes, Outcome, PostgresState, Processors
from queuert.testing import AsyncJobQueue

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


class AsyncHeld(Held):
    """The same for an asynchronous connection."""

    async def commit(self) -> None:  # type: ignore[override]
        """Left to ``complete()``."""

    rollback = close = commit  # type: ignore[assignment]


@asynccontextmanager
async def async_session_on(connection: Any) -> AsyncIterator[AsyncSession]:
    async def held() -> Any:
        return AsyncHeld(connection)

    engine = async_engine("postgresql+psycopg://", async_creator=held, poolclass=NullPool, use_native_hstore=False)
    async with (
        engine.begin() as outer,
        AsyncSession(outer, join_transaction_mode="create_savepoint") as session,
    ):
        yield session
        await session.commit()


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
