"""Steps: parts of a handler that later attempts do not repeat, and a sleep that keeps no slot.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.steps``.
"""

from __future__ import annotations

import asyncio
import os

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors, RetryPolicy

order = JobType("order", input=list[str], output=str)
job_types = JobTypes(order)
processors = Processors(job_types, retry=RetryPolicy(max_attempts=3, initial_delay=0.05))


async def charge(items: list[str], idempotency_key: str) -> int:
    print(f"charging for {len(items)} items")  # the key keeps the bank from charging twice if the worker dies now
    return 10 * len(items)


async def pack(item: str) -> str:
    print(f"packing {item}")
    return f"a packed {item}"


@processors.handles(order)
async def fulfil(attempt: Attempt[list[str], str]) -> Outcome[str]:
    price = await attempt.step("charge", charge, attempt.input, f"{attempt.job_id}/charge")
    packed = [await attempt.step("pack", pack, item, key=item) for item in attempt.input]
    await attempt.sleep("courier", 0.1)  # the attempt ends here; another one goes on from here
    await attempt.step("label", print_label)
    return f"{', '.join(packed)} for {price}"


labels = iter([ConnectionError("the printer is off"), None])


async def print_label() -> None:
    error = next(labels)
    if error is not None:
        print(error)
        raise error  # the next attempt repeats this step only
    print("printing the label")


async def main() -> None:
    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    async with client, InProcessWorker(client, processors):
        chain = await client.start_chain(order, ["lamp", "chair"])
        print(await chain.result(timeout=30))
        print([step.name for step in await client.get_steps(chain.id)])


if __name__ == "__main__":
    asyncio.run(main())
