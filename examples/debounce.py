"""A burst of changes, and one job after it with the newest input.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.debounce``.
"""

from __future__ import annotations

import asyncio
import os

from queuert import AsyncClient, Attempt, Deduplicate, InProcessWorker, JobType, JobTypes, Outcome, Processors

reindex = JobType("reindex", input=int, output=str)
job_types = JobTypes(reindex)
processors = Processors(job_types)


@processors.handles(reindex)
async def rebuild(attempt: Attempt[int, str]) -> Outcome[str]:
    return f"indexed version {attempt.input}"


async def main() -> None:
    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    async with client:
        # Due a second after the last change of the shop, and ten seconds after the first at the latest.
        quiet = Deduplicate("shop-7", debounce=1, max_delay=10)
        first = await client.start_chain(reindex, 1, deduplication=quiet)
        for version in range(2, 6):
            chain = await client.start_chain(reindex, version, deduplication=quiet)
            print(f"version {version}: debounced {chain.debounced}, the same chain {chain.id == first.id}")

        async with InProcessWorker(client, processors):
            print(await first.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
