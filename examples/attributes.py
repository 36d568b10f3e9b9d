"""Finds chains by their attributes, a customer and tags, and lists the live workers.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.attributes``.
"""

from __future__ import annotations

import asyncio
import os

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, NewChain, Outcome, Processors
from queuert.attributes import GivenAttributes

QUESTIONS: list[GivenAttributes] = [{"customer": 17}, {"tags": "food"}, {"customer": 17, "tags": ["food", "urgent"]}]

bill = JobType("grocery_bill", input=str, output=str)
job_types = JobTypes(bill)
processors = Processors(job_types)


@processors.handles(bill)
async def write_bill(attempt: Attempt[str, str]) -> Outcome[str]:
    return f"bill for {attempt.input}"


async def main() -> None:
    async with AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types) as client:
        await client.start_chains(
            [
                NewChain(bill, "tea", attributes={"customer": 17, "tags": ["food", "urgent"]}),
                NewChain(bill, "pens", attributes={"customer": 17, "tags": ["office"]}),
                NewChain(bill, "cake", attributes={"customer": 18, "tags": ["food"]}),
            ]
        )
        for requested in QUESTIONS:
            found = await client.list_chains(attributes=requested, oldest_first=True)
            print(f"{requested}: {', '.join(chain.input for chain in found)}")

        async with InProcessWorker(client, processors, name="biller", concurrency=5):
            [worker] = await client.list_workers()
            print(f"{worker.name} runs {', '.join(worker.job_types)}, {worker.concurrency} at once")
            chains = await client.wait(await client.list_chains(attributes={"tags": "food"}), timeout=30)
            print(", ".join(sorted([await chain.result() for chain in chains])))
        print(f"{len(await client.list_workers())} workers are left")


if __name__ == "__main__":
    asyncio.run(main())
