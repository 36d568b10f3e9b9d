"""One job waits for many chains and gets their outputs in order.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.fan_out_and_join``.
"""

from __future__ import annotations

import asyncio
import os

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, NewChain, Outcome, Processors

count_words = JobType("count_words", input=str, output=int)
add_up = JobType("count_all_words", input=str, output=int)
job_types = JobTypes(count_words, add_up)
processors = Processors(job_types)


@processors.handles(count_words)
async def count(attempt: Attempt[str, int]) -> Outcome[int]:
    return len(attempt.input.split())


@processors.handles(add_up)
async def total(attempt: Attempt[str, int]) -> Outcome[int]:
    words: int = sum(blocker.output for blocker in attempt.blockers)
    return words


async def main() -> None:
    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    async with client, InProcessWorker(client, processors, concurrency=4):
        pages = await client.start_chains(
            [NewChain(count_words, page) for page in ("one two", "three", "four five six")]
        )
        book = await client.start_chain(add_up, "the book", blockers=pages)
        print(f"{await book.result(timeout=30)} words")


if __name__ == "__main__":
    asyncio.run(main())
