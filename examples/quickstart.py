"""A chain of two jobs: started by a client, run by a worker in the same process, awaited with its typed result.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.quickstart``.
"""

from __future__ import annotations

import asyncio
import os

from examples.media import Published, Resize, Thumbnail, job_types, publish, resize
from queuert import AsyncClient, Attempt, InProcessWorker, Outcome, Processors

processors = Processors(job_types)


@processors.handles(resize)
async def resize_image(attempt: Attempt[Resize, Published]) -> Outcome[Published]:
    key = f"{attempt.input.width}/{attempt.input.url.rpartition('/')[2]}"
    return attempt.continue_with(publish, Thumbnail(key=key))


@processors.handles(publish)
def publish_thumbnail(attempt: Attempt[Thumbnail, Published]) -> Outcome[Published]:  # a plain def runs in a thread
    return Published(address=f"https://cdn.example/{attempt.input.key}")


async def main() -> None:
    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    async with client, InProcessWorker(client, processors, concurrency=10):
        chain = await client.start_chain(resize, Resize(url="https://example/cat.png", width=200))
        published = await chain.result(timeout=30)
        print(published.address)


if __name__ == "__main__":
    asyncio.run(main())
