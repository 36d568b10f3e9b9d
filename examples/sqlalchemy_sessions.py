"""A start in a transaction of SQLAlchemy's: the order and its job are one commit, sync and async.

The engine's driver may be psycopg (``postgresql+psycopg``), psycopg2, or asyncpg for asynchronous ones.

Run it from the root of the repository, after ``queuert migrate up``:
``QUEUERT_URL=... python -m examples.sqlalchemy_sessions``.
"""

from __future__ import annotations

import asyncio
import os

from sqlalchemy import create_engine, func, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from queuert import AsyncClient, Client, JobType, JobTypes, PostgresState
from queuert.errors import ChainNotFoundError

bill = JobType("ship_order", input=int, output=int)
job_types = JobTypes(bill)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "example_orders"
    number: Mapped[int] = mapped_column(primary_key=True)


def synchronously(url: str, client: Client) -> None:
    engine = create_engine(url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Order(number=1))
        chain = client.start_chain(bill, 1, connection=session)
        session.rollback()
        try:
            client.get_chain(chain.id)
        except ChainNotFoundError:
            print("rolled back: no order and no job")
    with Session(engine) as session, session.begin():
        session.add(Order(number=2))
        chain = client.start_chain(bill, 2, connection=session)
    print(f"committed: the job is {client.get_job(chain.id).status}")
    with engine.begin() as connection:  # a connection does as well
        client.start_chain(bill, 3, connection=connection)
    engine.dispose()


async def asynchronously(url: str, dsn: str) -> None:
    engine = create_async_engine(url)
    async with AsyncClient(PostgresState(dsn), job_types) as client:
        async with AsyncSession(engine) as session:
            session.add(Order(number=4))
            chain = await client.start_chain(bill, 4, connection=session)
            await session.commit()
            orders = await session.scalar(select(func.count()).select_from(Order))
        print(f"{orders} orders, the job is {(await client.get_job(chain.id)).status}")
    await engine.dispose()


def main() -> None:
    dsn = os.environ["QUEUERT_URL"]
    url = dsn.replace("postgresql://", "postgresql+psycopg://")
    with Client(PostgresState(dsn), job_types) as client:
        synchronously(url, client)
    asyncio.run(asynchronously(url, dsn))


if __name__ == "__main__":
    main()
