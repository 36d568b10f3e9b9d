"""A running job starts children, waits for them in the same commit, and runs again with their outputs.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.children``.
"""

from __future__ import annotations

import asyncio
import os

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, NewChain, Outcome, Processors

page = JobType("page", input=int, output=str)
book = JobType("book", input=int, output=list[str])
job_types = JobTypes(page, book)
processors = Processors(job_types)


@processors.handles(page)
async def print_page(attempt: Attempt[int, str]) -> Outcome[str]:
    return f"page {attempt.input}"


@processors.handles(book)
async def bind(attempt: Attempt[int, list[str]]) -> Outcome[list[str]]:
    if not attempt.blockers:
        return attempt.wait_for(*(NewChain(page, number + 1) for number in range(attempt.input)))
    return attempt.outputs_of(page)


async def main() -> None:
    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    async with client, InProcessWorker(client, processors, concurrency=4):
        chain = await client.start_chain(book, 3)
        print(", ".join(await chain.result(timeout=30)))
        bound = await client.get_job(chain.id)
        print(f"{bound.attempt} runs, {bound.uncounted} of them only to wait")


if __name__ == "__main__":
    asyncio.run(main())
