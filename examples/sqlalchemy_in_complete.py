"""An SQLAlchemy session inside ``attempt.complete()``: its writes and the job's completion are one commit.

There is no second connection: the session works on the one that ``complete()`` holds. ``session.rollback()`` undoes
what the session wrote; the transaction itself is ended by ``complete()`` alone.

Run it from the root of the repository, after ``queuert migrate up``:
``QUEUERT_URL=... python -m examples.sqlalchemy_in_complete``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, PostgresState, Processors

bill = JobType("settle_order", input=int, output=int)
job_types = JobTypes(bill)
processors = Processors(job_types)


class Held:
    """A psycopg connection whose transaction is somebody else's to end."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        """Left to ``complete()``, as are the next two."""

    rollback = close = commit


held: ContextVar[Any] = ContextVar("held")
engine = create_engine(
    "postgresql+psycopg://", creator=lambda: Held(held.get()), poolclass=NullPool, use_native_hstore=False
)


@contextmanager
def session_on(connection: Any) -> Iterator[Session]:
    """A session that works in the transaction of ``connection``."""
    held.set(connection)
    with engine.begin() as outer, Session(outer, join_transaction_mode="create_savepoint") as session:
        yield session
        session.commit()  # ends a savepoint


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    __tablename__ = "example_billed"
    number: Mapped[int] = mapped_column(primary_key=True)


@processors.handles(bill)
def bill_order(attempt: Attempt[int, int]) -> Outcome[int]:
    with attempt.complete() as tx:
        with session_on(tx.connection) as session:
            session.add(Invoice(number=attempt.input))
        return tx.finish(attempt.input)


async def work(dsn: str) -> None:
    async with AsyncClient(PostgresState(dsn), job_types) as client, InProcessWorker(client, processors):
        print(f"order {await client.start_and_wait(bill, 7)} is billed")


def main() -> None:
    dsn = os.environ["QUEUERT_URL"]
    own = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    Base.metadata.drop_all(own)
    Base.metadata.create_all(own)
    asyncio.run(work(dsn))
    with Session(own) as session:
        print(f"invoices: {[invoice.number for invoice in session.query(Invoice)]}")
    own.dispose()


if __name__ == "__main__":
    main()
