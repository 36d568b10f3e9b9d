"""A start in a transaction of psycopg's: on a connection, a cursor, an asynchronous connection, or a pool.

Run it from the root of the repository, after ``queuert migrate up``:
``QUEUERT_URL=... python -m examples.psycopg_connections``.
"""

from __future__ import annotations

import asyncio
import os

import psycopg
from psycopg_pool import ConnectionPool

from queuert import AsyncClient, ChainStatus, Client, JobType, JobTypes, PostgresState
from queuert.errors import ChainNotFoundError, JobIdConflictError

bill = JobType("pay_order", input=int, output=int)
job_types = JobTypes(bill)


def exists(client: Client, chain_id: str) -> bool:
    try:
        return client.get_chain(chain_id).status is ChainStatus.OPEN
    except ChainNotFoundError:
        return False


def on_a_connection(client: Client, url: str) -> None:
    with psycopg.connect(url) as connection:
        lost = client.start_chain(bill, 1, connection=connection)
        connection.rollback()
        with connection.transaction(), connection.cursor() as cursor:
            kept = client.start_chain(bill, 2, connection=cursor)
            try:
                client.start_chain(bill, 2, id=kept.id, connection=connection)
            except JobIdConflictError:
                print("refused, and the transaction goes on")
            print(f"before the commit: {exists(client, kept.id)}")
        print(f"after it: {exists(client, kept.id)}; rolled back: {exists(client, lost.id)}")


def on_a_pool(client: Client, url: str) -> None:
    with ConnectionPool(url, min_size=1, open=True) as pool:
        chain = client.start_chain(bill, 3, connection=pool)  # lends a connection: committed when this returns
        print(f"with the pool's connection: {exists(client, chain.id)}")


async def asynchronously(url: str) -> str:
    async with (
        AsyncClient(PostgresState(url), job_types) as client,
        await psycopg.AsyncConnection.connect(url) as connection,  # commits when the block ends well
    ):
        return (await client.start_chain(bill, 4, connection=connection)).id


def main() -> None:
    url = os.environ["QUEUERT_URL"]
    with Client(PostgresState(url), job_types) as client:
        on_a_connection(client, url)
        on_a_pool(client, url)
        print(f"asynchronously: {exists(client, asyncio.run(asynchronously(url)))}")


if __name__ == "__main__":
    main()
