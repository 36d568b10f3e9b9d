"""A consumer is killed in the middle of a job; another one takes the job over when its lease has expired.

Run it from the root of the repository: ``QUEUERT_URL=redis://localhost:6379 python -m examples.redis_crash``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from queuert import AsyncClient, Attempt, Client, InProcessWorker, JobType, JobTypes, Outcome, Processors, RetryPolicy
from queuert.observability.events import Event, JobReaped
from queuert.policies import LeasePolicy

charge = JobType("charge", input=int, output=str)
job_types = JobTypes(charge)

# A short lease finds the dead soon; it is renewed for as long as a handler runs, however long that is.
processors = Processors(job_types, lease=LeasePolicy(seconds=1.5), retry=RetryPolicy(initial_delay=0, max_crashes=3))


@processors.handles(charge)
def charge_card(attempt: Attempt[int, str]) -> Outcome[str]:
    if attempt.worker.startswith("crashing"):
        print(f"attempt {attempt.number} has begun", flush=True)
        time.sleep(3600)
    # The payment provider gets the job's id, so that a charge that was made before the crash is not made again.
    return f"charged {attempt.input}, attempt {attempt.number}"


class Tell:
    """An observer; the rest of what happens is not shown."""

    def emit(self, event: Event) -> None:
        if isinstance(event, JobReaped):
            print(f"{event.job_id} was lost by {(event.holder or '').partition('-')[0]}")


def consume() -> int:
    with Client.from_url(os.environ["QUEUERT_URL"], job_types) as client:
        return InProcessWorker(client, processors, name="crashing").run()


async def main() -> None:
    async with AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types, observability=Tell()) as client:
        chain = await client.start_chain(charge, 30, id="order-7")
        program = (sys.executable, "-m", "examples.redis_crash", "consume")
        consumer = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
        assert consumer.stdout is not None
        print((await consumer.stdout.readline()).decode().strip())
        consumer.kill()
        print(f"killed: {await consumer.wait()}")
        async with InProcessWorker(client, processors, name="heir"):
            print(await chain.result(timeout=30))
        print(f"workers' deaths: {(await client.get_job('order-7')).lease_expirations}")
        await client.delete_chain(chain)  # so that this program can be run again


if __name__ == "__main__":
    sys.exit(consume() if "consume" in sys.argv else asyncio.run(main()))
