"""Both ends of a job in your own transactions: the start with the order, the completion with the invoice.

The first order is rolled back, and its job with it. The second one is committed; its invoice and the job's completion
are one commit, however often the job had to be tried.

Run it from the root of the repository, after ``queuert migrate up``:
``QUEUERT_URL=... python -m examples.with_your_transaction``.
"""

from __future__ import annotations

import asyncio
import os

import psycopg
from pydantic import BaseModel

from queuert import AsyncClient, Attempt, Client, InProcessWorker, JobType, JobTypes, Outcome, PostgresState, Processors


class Order(BaseModel):
    number: int


class Invoice(BaseModel):
    order: int
    total: int


bill = JobType("bill", input=Order, output=Invoice)
job_types = JobTypes(bill)
processors = Processors(job_types)


@processors.handles(bill)
async def bill_order(attempt: Attempt[Order, Invoice]) -> Outcome[Invoice]:
    invoice = Invoice(order=attempt.input.number, total=42)  # slow work goes here, outside the transaction
    async with attempt.complete() as tx:
        await tx.connection.execute("insert into example_invoices values (%s, %s)", (invoice.order, invoice.total))
        return tx.finish(invoice)


def place_order(client: Client, connection: psycopg.Connection, number: int) -> str:
    connection.execute("insert into orders values (%s)", (number,))
    return client.start_chain(bill, Order(number=number), connection=connection).id


async def work(url: str, chain_id: str) -> None:
    async with AsyncClient(PostgresState(url), job_types) as client, InProcessWorker(client, processors):
        invoice = await (await client.get_chain(chain_id, bill)).result(timeout=30)
        print(f"order {invoice.order} is billed with {invoice.total}")


def main() -> None:
    url = os.environ["QUEUERT_URL"]
    with psycopg.connect(url) as connection, Client(PostgresState(url), job_types) as client:
        connection.execute("create temp table if not exists orders (number int)")
        connection.execute("drop table if exists example_invoices")
        connection.execute("create table example_invoices (number int primary key, total int)")
        connection.commit()

        place_order(client, connection, 1)
        connection.rollback()  # neither the order nor its job were ever there

        chain_id = place_order(client, connection, 2)
        connection.commit()
    asyncio.run(work(url, chain_id))


if __name__ == "__main__":
    main()
