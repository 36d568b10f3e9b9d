"""Request and response: one call starts a job and waits; its result is kept for a while.

Run it from the root of the repository: ``QUEUERT_URL=redis://localhost:6379 python -m examples.redis_requests``.
"""

from __future__ import annotations

import asyncio
import hashlib
import os

from pydantic import BaseModel

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors, RetryPolicy
from queuert.errors import JobFailedError, WaitTimeoutError


class Image(BaseModel):
    url: str
    width: int


class Thumbnail(BaseModel):
    url: str
    made_by: int


thumbnail = JobType("thumbnail", input=Image, output=Thumbnail)
job_types = JobTypes(thumbnail)
processors = Processors(job_types, retry=RetryPolicy(max_attempts=2, initial_delay=0.01))


@processors.handles(thumbnail)
async def make(attempt: Attempt[Image, Thumbnail]) -> Outcome[Thumbnail]:
    if not attempt.input.url.endswith(".jpg"):
        raise ValueError("not a picture")
    print(f"working on {attempt.input.url}")
    return Thumbnail(url=f"{attempt.input.url}?w={attempt.input.width}", made_by=attempt.number)


def content_id(image: Image) -> str:
    """The same for the same input."""
    return hashlib.sha256(image.model_dump_json().encode()).hexdigest()[:16]


async def main() -> None:
    async with AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types) as client:

        async def ask(url: str, timeout: float = 30) -> Thumbnail:
            image = Image(url=url, width=200)
            return await client.start_and_wait(
                thumbnail, image, id=content_id(image), timeout=timeout, result_ttl=24 * 3600
            )

        try:
            await ask("cat.jpg", timeout=0.1)
        except WaitTimeoutError as error:
            # Nobody works yet; the job is there all the same.
            print(f"no answer yet: {(await client.get_chain(error.open_ids[0])).status}")
        async with InProcessWorker(client, processors):
            for answer in await asyncio.gather(*(ask("cat.jpg") for _ in range(3))):
                print(answer.url)
            try:
                await ask("cat.txt")
            except JobFailedError as error:
                print(error.reason)
        # Without a worker: the answers that were kept.
        print((await ask("cat.jpg")).url)
        chain = await client.get_chain(content_id(Image(url="cat.jpg", width=200)), thumbnail)
        assert chain.expires_at is not None
        assert chain.closed_at is not None
        print(f"kept for {(chain.expires_at - chain.closed_at).total_seconds() / 3600:.0f} hours")
        print([update.value for update in await client.update_result_ttl([chain, "another"], 60)])


if __name__ == "__main__":
    asyncio.run(main())
