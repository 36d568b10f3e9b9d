"""Cancels chains: one that waits closes at once, one that runs is aborted and cannot commit.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.cancellation``.
"""

from __future__ import annotations

import asyncio
import os

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors, after
from queuert.errors import ChainCancelledError

export = JobType("export", input=str, output=str)
job_types = JobTypes(export)
processors = Processors(job_types)
begun, reported = asyncio.Event(), asyncio.Event()


@processors.handles(export)
async def run_export(attempt: Attempt[str, str]) -> Outcome[str]:
    begun.set()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print(f"the handler of {attempt.input} is told: {attempt.abort.reason}")
        reported.set()
        raise
    return "exported"


async def main() -> None:
    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    async with client, InProcessWorker(client, processors):
        waiting = await client.start_chain(export, "tomorrow", run_at=after(days=1))
        running = await client.start_chain(export, "now")
        await begun.wait()
        await client.cancel_chains([waiting, running], reason="the account was closed")
        await reported.wait()
        for chain in (waiting, running):
            try:
                await chain.result(timeout=30)
            except ChainCancelledError as error:
                print(error.reason)


if __name__ == "__main__":
    asyncio.run(main())
