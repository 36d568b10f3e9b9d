"""Failed attempts: retried by the policy, retried on request, or failed for good.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.retries_and_failures``.
"""

from __future__ import annotations

import asyncio
import os

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors, RetryPolicy
from queuert.errors import JobFailedError

call = JobType("call", input=str, output=str)
job_types = JobTypes(call)
processors = Processors(job_types, retry=RetryPolicy(max_attempts=3, initial_delay=0.05))


@processors.handles(call)
async def place_call(attempt: Attempt[str, str]) -> Outcome[str]:
    if attempt.input == "busy" and attempt.number == 1:
        return attempt.retry(after=0.1, reason="the line is busy")
    if attempt.input == "flaky" and attempt.number < 3:
        raise ConnectionError("no dial tone")  # tried again after the pause of the retry policy
    if attempt.input == "unknown":
        return attempt.fail("there is no such number")  # at once, whatever attempts are left
    return f"{attempt.input} answered at attempt {attempt.number}"


async def main() -> None:
    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    async with client, InProcessWorker(client, processors, concurrency=3):
        for number in ("busy", "flaky", "unknown"):
            chain = await client.start_chain(call, number)
            try:
                print(await chain.result(timeout=30))
            except JobFailedError as error:
                print(error.reason)


if __name__ == "__main__":
    asyncio.run(main())
