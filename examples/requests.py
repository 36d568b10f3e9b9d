"""Request and response: start, wait, and get the stored result when the request is repeated.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.requests``.
"""

from __future__ import annotations

import asyncio
import os

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors
from queuert.errors import JobFailedError, RetryLater, Unrecoverable
from queuert.policies import Keep, Retention
from queuert.worker.after_attempt import EndedAttempt

quote = JobType("quote", input=str, output=int)
job_types = JobTypes(quote)


def longer_if_good(ended: EndedAttempt) -> None:
    if ended.error is None:
        ended.result_ttl = 600


# Chains without a TTL of their own: completed ones for an hour, the newest hundred failed ones for a week.
kept = Retention(completed=Keep(age=3600), failed=Keep(age=7 * 86_400, count=100))
processors = Processors(job_types, retention=kept, after_attempt=longer_if_good)


@processors.handles(quote)
async def quote_price(attempt: Attempt[str, int]) -> Outcome[int]:
    if attempt.input == "unicorn":
        raise Unrecoverable("nobody sells unicorns")
    if attempt.number == 1:
        raise RetryLater(after=0.01, reason="the shop is busy")
    print(f"asked the shop for the price of a {attempt.input}")
    return 42


async def main() -> None:
    async with AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types) as client:
        async with InProcessWorker(client, processors):
            for _ in range(2):
                print(await client.start_and_wait(quote, "cat", id="quote-cat", result_ttl=60, timeout=30))
            try:
                await client.start_and_wait(quote, "unicorn", id="quote-unicorn", result_ttl=60)
            except JobFailedError as error:
                print(error.reason)

        chain = await client.get_chain("quote-cat", quote)
        assert chain.expires_at is not None
        assert chain.closed_at is not None
        print(f"kept for {(chain.expires_at - chain.closed_at).total_seconds():.0f} seconds")
        [update] = await client.update_result_ttl([chain], 600)
        print(update.value)


if __name__ == "__main__":
    asyncio.run(main())
