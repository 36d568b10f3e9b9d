"""Approvals: a job that a client completes, one that closes with the job that waits for it, and an event.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.approvals``.
"""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta

from queuert import AsyncChain, AsyncClient, Attempt, InProcessWorker, JobStatus, JobType, JobTypes, Outcome, Processors
from queuert.errors import ChainAlreadyClosedError, EventTimeoutError

# A chain that goes on when somebody has decided. No worker runs the job in the middle: it waits for a client, and
# operators see it when it has waited for three days.
pay = JobType("pay", input=int, output=str)
approve = JobType(
    "approve", input=int, output=str, continues_with=pay, completed_by="client", overdue_after=timedelta(days=3)
)
request = JobType("request", input=int, continues_with=approve)

# A chain that waits for the decisions of others, each a chain of its own. They close when it is withdrawn.
review = JobType("review", input=str, output=bool, completed_by="client", closes_with_parent=True)
publish = JobType("publish_article", input=str, output=str)

# A handler that goes on with the answer.
refund = JobType("refund", input=int, output=str)

job_types = JobTypes(request, approve, pay, review, publish, refund)
processors = Processors(job_types)


@processors.handles(request)
async def ask(attempt: Attempt[int, str]) -> Outcome[str]:
    return attempt.continue_with(approve, attempt.input)


@processors.handles(pay)
async def pay_out(attempt: Attempt[int, str]) -> Outcome[str]:
    return f"paid {attempt.input}"


@processors.handles(publish)
async def publish_article(attempt: Attempt[str, str]) -> Outcome[str]:
    return f"published {attempt.input}" if all(attempt.outputs_of(review)) else f"rejected {attempt.input}"


@processors.handles(refund)
async def refund_order(attempt: Attempt[int, str]) -> Outcome[str]:
    try:
        by = await attempt.wait_for_event("approved", str, timeout=timedelta(days=3))
    except EventTimeoutError:
        return attempt.fail("nobody approved it")
    return f"refunded {attempt.input}, approved by {by}"


async def are_waiting(client: AsyncClient, job_type: JobType[int, str], number: int) -> None:
    """Wait until so many approvals wait: a program would list them, for somebody to look at."""
    while len(await client.list_jobs(job_types=[job_type], statuses=[JobStatus.READY])) < number:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def decide(client: AsyncClient) -> None:
    small, large = await client.start_chain(request, 5), await client.start_chain(request, 5000)
    await are_waiting(client, approve, 2)
    await client.continue_chain(small, pay, 5, expecting=approve)
    await client.complete_chain(large, "refused: too much", expecting=approve)
    print(await small.result(timeout=30))
    print(await large.result(timeout=30))
    await tell_too_late(client, large, "approved after all")


async def review_together(client: AsyncClient) -> None:
    for article in ("the news", "a rumour"):
        reviews = [await client.start_chain(review, reader) for reader in ("ada", "ben")]
        article_chain = await client.start_chain(publish, article, blockers=reviews)
        await client.complete_chain(reviews[0], True)
        if article == "a rumour":
            await client.cancel_chain(article_chain, reason="withdrawn")
            await tell_too_late(client, reviews[1], True)
        else:
            await client.complete_chain(reviews[1], True)
            print(await article_chain.result(timeout=30))


async def tell_too_late(client: AsyncClient, chain: AsyncChain[object], output: object) -> None:
    try:
        await client.complete_chain(chain, output)
    except ChainAlreadyClosedError as error:
        print(f"too late: the chain is {error.status}")


async def main() -> None:
    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    async with client, InProcessWorker(client, processors, concurrency=2):
        await decide(client)
        await review_together(client)

        chain = await client.start_chain(refund, 12)
        await client.send_event(chain, "approved", "ada")
        print(await chain.result(timeout=30))

        # What is overdue, as `queuert doctor` and an alert say it, too.
        for one in await client.list_client_types():
            if one.overdue_after is not None:
                since = datetime.now(UTC) - timedelta(seconds=one.overdue_after)
                waiting = await client.list_jobs(job_types=[one.type], statuses=[JobStatus.READY])
                print(f"{one.type}: {sum(job.scheduled_at < since for job in waiting)} overdue")


if __name__ == "__main__":
    asyncio.run(main())
