"""One chain for one key: while it is open, for an hour, or by an id of your own.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.deduplication``.
"""

from __future__ import annotations

import asyncio
import os

from queuert import AsyncClient, Attempt, Deduplicate, InProcessWorker, JobType, JobTypes, Outcome, Processors

report = JobType("sales_report", input=str, output=str)
job_types = JobTypes(report)
processors = Processors(job_types)


@processors.handles(report)
async def write_report(attempt: Attempt[str, str]) -> Outcome[str]:
    return f"report for {attempt.input}"


async def main() -> None:
    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    async with client:
        first = await client.start_chain(report, "Ada", deduplication=Deduplicate("sales"))
        second = await client.start_chain(report, "Bob", deduplication=Deduplicate("sales"))
        print(f"the second is the first: {second.deduplicated and second.id == first.id}")

        async with InProcessWorker(client, processors):
            print(await second.result(timeout=30))

            third = await client.start_chain(report, "Carl", deduplication=Deduplicate("sales"))
            print(f"the first has closed, so the third is new: {not third.deduplicated}")
            await third.wait(timeout=30)

            # The cached result: closed chains of the last hour count as well.
            cached = await client.start_chain(
                report, "Dora", deduplication=Deduplicate("sales", scope="any", window=3600)
            )
            print(f"cached: {await cached.result(timeout=30)}")

            # A request that is repeated, known by its id: attach to its chain, or get its result at once.
            for _ in range(2):
                request = await client.start_chain(report, "Eve", id="request-17", attach=True)
                print(f"{await request.result(timeout=30)}, repeated: {request.deduplicated}")


if __name__ == "__main__":
    asyncio.run(main())
