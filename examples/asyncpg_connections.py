"""A start on a connection of asyncpg: in its transaction, and on what its pool lends.

The client and its workers connect by psycopg; the rows and the job are one commit all the same.

Run it from the root of the repository, after ``queuert migrate up``:
``QUEUERT_URL=... python -m examples.asyncpg_connections``.
"""

from __future__ import annotations

import asyncio
import os

import asyncpg

from queuert import AsyncClient, JobType, JobTypes, PostgresState
from queuert.errors import ChainNotFoundError

bill = JobType("bill_by_asyncpg", input=int, output=int)
job_types = JobTypes(bill)


async def start(dsn: str, client: AsyncClient) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
        async with pool.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            lost = await client.start_chain(bill, 1, connection=connection)
            await transaction.rollback()
            async with connection.transaction():
                kept = await client.start_chain(bill, 2, connection=connection)
        try:
            await client.get_chain(lost.id)
        except ChainNotFoundError:
            print("rolled back: no job")
        print(f"committed: the job is {(await client.get_job(kept.id)).status}")
        chain = await client.start_chain(bill, 3, connection=pool)  # lends a connection: committed when this returns
        print(f"by the pool: the job is {(await client.get_job(chain.id)).status}")


async def run(dsn: str) -> None:
    async with AsyncClient(PostgresState(dsn), job_types) as client:
        await start(dsn, client)


def main() -> None:
    asyncio.run(run(os.environ["QUEUERT_URL"]))


if __name__ == "__main__":
    main()
