"""One job at a time for each customer, over all workers together.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.limits``.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Limits, NewChain, Outcome, Processors

sync = JobType("sync", input=str, output=None)
job_types = JobTypes(sync)
processors = Processors(job_types)
running: Counter[str] = Counter()
most: Counter[str] = Counter()


@processors.handles(sync, limits=Limits(per_key=1))
async def synchronise(attempt: Attempt[str, None]) -> Outcome[None]:
    customer = attempt.input
    running[customer] += 1
    most[customer] = max(most[customer], running[customer])
    await asyncio.sleep(0.02)
    running[customer] -= 1
    return None


async def main() -> None:
    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    customers = ["ada", "bob"]
    async with client, InProcessWorker(client, processors, concurrency=4), InProcessWorker(client, processors):
        chains = await client.start_chains(
            [NewChain(sync, customer, limit_key=customer) for customer in customers for _ in range(4)]
        )
        await client.wait(chains, timeout=30)
        print(f"{len(chains)} done; at once for each: {dict(sorted(most.items()))}")


if __name__ == "__main__":
    asyncio.run(main())
