"""Several queues on one Redis: by job types within a namespace, and by namespaces, which share nothing.

Run it from the root of the repository: ``QUEUERT_URL=redis://localhost:6379 python -m examples.redis_queues``.
"""

from __future__ import annotations

import asyncio
import os

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Limits, Outcome, Processors
from queuert.errors import ChainNotFoundError
from queuert.state.redis import RedisState

image = JobType("image", input=str, output=str)
mail = JobType("mail", input=str, output=str)
job_types = JobTypes(image, mail)


def processors_of(shop: str) -> Processors:
    processors = Processors(job_types)

    # All workers of the shop together run two of these at most, and any number of those.
    @processors.handles(image, limits=Limits(concurrency=2))
    async def resize(attempt: Attempt[str, str]) -> Outcome[str]:
        return f"{attempt.input} resized by {shop}"

    @processors.handles(mail)
    async def send(attempt: Attempt[str, str]) -> Outcome[str]:
        return f"{attempt.input} sent by {shop}"

    return processors


async def main() -> None:
    url = os.environ["QUEUERT_URL"]
    blue = AsyncClient(RedisState(url, namespace="blue"), job_types)
    green = AsyncClient(RedisState(url, namespace="green"), job_types)
    async with blue, green:
        for client in (blue, green):
            await client.start_chain(image, "logo", id="logo")
        print(f"cancelled in green: {await green.cancel_chain('logo')}; in blue it is", end=" ")
        print((await blue.get_chain("logo")).status)
        async with InProcessWorker(blue, processors_of("blue")), InProcessWorker(green, processors_of("green")):
            print(await (await blue.get_chain("logo", image)).result(timeout=30))
            print(await blue.start_and_wait(mail, "letter", id="letter"))
            print(await green.start_and_wait(image, "photo", id="photo"))
        for name, client in (("blue", blue), ("green", green)):
            counts = ", ".join(f"{one.type} {one.status} {one.count}" for one in await client.count_jobs())
            print(f"{name}: {counts}")
        try:
            await green.get_chain("letter")
        except ChainNotFoundError as error:
            print(error)


if __name__ == "__main__":
    asyncio.run(main())
