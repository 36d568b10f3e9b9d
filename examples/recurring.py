"""A schedule that starts one chain each tick, whatever the number of workers.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.recurring``.
"""

from __future__ import annotations

import asyncio
import os

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors, RecurringSchedule

report = JobType("sum_up", input=str, output=None)
job_types = JobTypes(report)
processors = Processors(job_types)
reported: asyncio.Queue[str] = asyncio.Queue()


@processors.handles(report)
async def write_report(attempt: Attempt[str, None]) -> Outcome[None]:
    reported.put_nowait(attempt.chain_id.partition("@")[0])
    return None


async def main() -> None:
    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    schedules = [
        RecurringSchedule("every-second", report, "all", every=1),
        RecurringSchedule("nightly", report, "all", cron="0 3 * * *", time_zone="Europe/Berlin", missed="skip"),
    ]
    workers = [InProcessWorker(client, processors, schedules=schedules) for _ in range(2)]
    async with client, workers[0], workers[1]:
        for _ in range(2):
            print(await asyncio.wait_for(reported.get(), 30))
        await client.pause_schedules(["every-second"])
        for schedule in await client.list_schedules():
            print(schedule.name, "paused" if schedule.paused else "goes on")
        await client.delete_schedules(schedule.name for schedule in schedules)


if __name__ == "__main__":
    asyncio.run(main())
