"""A chain that waits for a person: no worker handles the middle job; a client completes it.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.approvals``.
"""

from __future__ import annotations

import asyncio
import os

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors
from queuert.errors import ChainAlreadyClosedError

pay = JobType("pay", input=int, output=str)
# No worker runs it: it waits for a client, and operators see it when it has waited for a day.
approve = JobType("approve", input=int, output=str, continues_with=pay, completed_by="client", overdue_after=86_400)
request = JobType("request", input=int, continues_with=approve)
job_types = JobTypes(request, approve, pay)
processors = Processors(job_types)


@processors.handles(request)
async def ask(attempt: Attempt[int, str]) -> Outcome[str]:
    return attempt.continue_with(approve, attempt.input)


@processors.handles(pay)
async def pay_out(attempt: Attempt[int, str]) -> Outcome[str]:
    return f"paid {attempt.input}"


async def is_wanted(client: AsyncClient, chain_id: str) -> None:
    """Wait until the chain is at its approval: a program would list those that are, for somebody to look at."""
    while (await client.get_job(chain_id)).continued_by is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def main() -> None:
    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    async with client, InProcessWorker(client, processors, concurrency=2):
        small, large = [await client.start_chain(request, amount) for amount in (5, 5000)]
        for chain in (small, large):
            await is_wanted(client, chain.id)
        await client.continue_chain(small, pay, 5, expecting=approve)
        print(await small.result(timeout=30))
        await client.complete_chain(large, "refused: too much", expecting=approve)
        print(await large.result(timeout=30))
        try:
            await client.complete_chain(large, "approved after all")
        except ChainAlreadyClosedError as error:
            print(f"too late: the chain is {error.status}")


if __name__ == "__main__":
    asyncio.run(main())
