"""The resources of a worker: opened before its first job, given to every handler, closed after its last.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.lifespan``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors

greet = JobType("greet_by_name", input=str, output=str)
job_types = JobTypes(greet)


@dataclass
class App:
    """What the handlers share: a pool of connections, an HTTP client, settings."""

    greetings: dict[str, str]
    greeted: list[str] = field(default_factory=list)


@asynccontextmanager
async def lifespan() -> AsyncIterator[App]:
    app = App(greetings={"en": "hello", "fr": "bonjour"})
    print("opened")
    yield app
    print("closed, after", ", ".join(app.greeted))


processors = Processors(job_types, lifespan=lifespan)


@processors.handles(greet)
async def say_hello(attempt: Attempt[str, str, App]) -> Outcome[str]:  # the third type is that of the resources
    app = attempt.resources
    app.greeted.append(attempt.input)
    return f"{app.greetings['fr']}, {attempt.input}"


async def main() -> None:
    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    async with client, InProcessWorker(client, processors):
        for name in ("Ada", "Grace"):
            chain = await client.start_chain(greet, name)
            print(await chain.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
