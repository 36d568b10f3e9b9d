"""Cancelling jobs in each of their states, and starting the same thing again.

Run it from the root of the repository: ``QUEUERT_URL=redis://localhost:6379 python -m examples.redis_cancellation``.
"""

from __future__ import annotations

import asyncio
import os

from queuert import AsyncClient, Attempt, Deduplicate, InProcessWorker, JobType, JobTypes, Outcome, Processors, after
from queuert.errors import ChainNotFoundError
from queuert.jobs import AbortReason

export = JobType("export_csv", input=str, output=str)
job_types = JobTypes(export)
processors = Processors(job_types)
running = asyncio.Event()
reasons: asyncio.Queue[AbortReason | None] = asyncio.Queue()


@processors.handles(export)
async def write(attempt: Attempt[str, str]) -> Outcome[str]:
    if attempt.input == "everything":
        running.set()
        try:
            await asyncio.sleep(3600)
        finally:
            reasons.put_nowait(attempt.abort.reason)
    return f"{attempt.input}.csv"


async def cancel(client: AsyncClient, id: str) -> None:
    try:
        cancelled = await client.cancel_chain(id, reason="not wanted any more")
    except ChainNotFoundError:
        print(f"{id}: not found")
    else:
        print(f"{id}: {'cancelled' if cancelled else 'too late'}, it is {(await client.get_chain(id)).status}")


async def main() -> None:
    async with AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types) as client:
        await client.start_chain(export, "orders", id="waiting")
        await client.start_chain(export, "orders", id="scheduled", run_at=after(hours=1))
        await cancel(client, "waiting")
        await cancel(client, "scheduled")
        async with InProcessWorker(client, processors):
            print(await client.start_and_wait(export, "customers", id="completed"))
            await cancel(client, "completed")
            await client.start_chain(export, "everything", id="running")
            await running.wait()
            await cancel(client, "running")
            print(f"the handler is told: {await reasons.get()}")
            await cancel(client, "missing")

            # A key is free as soon as its chain is closed; an id when its chain is deleted.
            by_key = Deduplicate("the orders")
            first = await client.start_chain(export, "orders of May", deduplication=by_key)
            await client.cancel_chain(first)
            again = await client.start_chain(export, "orders of June", deduplication=by_key)
            print(f"deduplicated: {again.deduplicated}, {await again.result(timeout=30)}")
            await client.delete_chain("waiting")
            print(await client.start_and_wait(export, "orders, again", id="waiting"))
            # So that this program can be run again.
            await client.delete_chains(["waiting", "scheduled", "completed", "running"])


if __name__ == "__main__":
    asyncio.run(main())
