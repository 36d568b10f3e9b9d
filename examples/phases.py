"""Phases: the parts of a long job, with a status of each and progress of all together.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.phases``.
"""

from __future__ import annotations

import asyncio
import os

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Processors, RetryPolicy

video = JobType("video", input=str, output=str, phases={"download": 3, "transcode": 6, "upload": 1})
job_types = JobTypes(video)
processors = Processors(job_types, retry=RetryPolicy(max_attempts=2, initial_delay=0.05))


async def download(url: str) -> str:
    return url.rpartition("/")[2]  # called once: the second attempt gets the result


async def transcode(attempt: Attempt[str, str], file: str) -> str:
    for frame in range(100):
        attempt.record_progress(frame, 100, message=f"frame {frame}")
        if frame == 50 and attempt.number == 1:
            raise ValueError(f"frame {frame} is broken")
    return f"small-{file}"


async def upload(file: str) -> str:
    return f"https://videos.example/{file}"


@processors.handles(video)
async def publish(attempt: Attempt[str, str]) -> str:
    file = await attempt.phase("download", download, attempt.input)
    small = await attempt.phase("transcode", transcode, attempt, file)
    return await attempt.phase("upload", upload, small)


async def main() -> None:
    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    async with client:
        cursor = await client.event_cursor()
        chain = await client.start_chain(video, "https://camera.example/cat.mov")
        async with InProcessWorker(client, processors):
            async for event in client.follow(chain, after=cursor):
                if event.kind in ("phase_started", "phase_completed", "retried"):
                    print(event.kind, (event.progress and event.progress.phase) or event.error)
        print(await chain.result())
        for phase in await chain.phases():
            print(f"{phase.number}. {phase.name}: {phase.status} by attempt {phase.attempt}")


if __name__ == "__main__":
    asyncio.run(main())
