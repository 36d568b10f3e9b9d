"""An SQLAlchemy session inside ``attempt.complete()``: its writes and the job's completion are one commit.

There is no second connection: the session works on the one that ``complete()`` holds. ``session.rollback()`` undoes
what the session wrote; the transaction itself is ended by ``complete()`` alone.

Run it from the root of the repository, after ``queuert migrate up``:
``QUEUERT_URL=... python -m examples.sqlalchemy_in_complete``.
"""

from __future__ import annotations

import asyncio
import os

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, PostgresState, Processors
from queuert.integrations.sqlalchemy import async_session_on, session_on

bill = JobType("settle_order", input=int, output=int)
remind = JobType("remind_debtor", input=int, output=int)
job_types = JobTypes(bill, remind)
processors = Processors(job_types)


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    __tablename__ = "example_billed"
    number: Mapped[int] = mapped_column(primary_key=True)
    reminders: Mapped[int] = mapped_column(default=0)


@processors.handles(bill)
def bill_order(attempt: Attempt[int, int]) -> Outcome[int]:
    with attempt.complete() as tx:
        with session_on(tx.connection) as session:
            session.add(Invoice(number=attempt.input))
        return tx.finish(attempt.input)


@processors.handles(remind)
async def remind_debtor(attempt: Attempt[int, int]) -> Outcome[int]:
    async with attempt.complete() as tx:
        async with async_session_on(tx.connection) as session:
            invoice = await session.get_one(Invoice, attempt.input)
            invoice.reminders += 1
        return tx.finish(attempt.input)


async def work(dsn: str) -> None:
    async with AsyncClient(PostgresState(dsn), job_types) as client, InProcessWorker(client, processors):
        print(f"order {await client.start_and_wait(bill, 7)} is billed")
        print(f"the debtor of {await client.start_and_wait(remind, 7)} is reminded")


def main() -> None:
    dsn = os.environ["QUEUERT_URL"]
    own = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    Base.metadata.drop_all(own)
    Base.metadata.create_all(own)
    asyncio.run(work(dsn))
    with Session(own) as session:
        print(f"invoices: {[(invoice.number, invoice.reminders) for invoice in session.query(Invoice)]}")
    own.dispose()


if __name__ == "__main__":
    main()
