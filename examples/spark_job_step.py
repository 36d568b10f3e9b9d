"""A Spark job as a step of a chain: it reports progress, and stops when its chain is cancelled.

Needs ``queuert[spark]`` and a Java. Run it from the root of the repository, after ``queuert migrate up``:
``QUEUERT_URL=... python -m examples.spark_job_step``.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterable

from pydantic import BaseModel

from queuert import Attempt, Client, InProcessWorker, JobType, JobTypes, Outcome, PostgresState, Processors
from queuert.errors import ChainCancelledError
from queuert.policies import LeasePolicy
from queuert.spark import SparkProgress, local_session, spark_scope


class Numbers(BaseModel):
    upto: int
    seconds_a_task: float = 0.0


class Total(BaseModel):
    total: int


report = JobType("report", input=Total, output=str)
add_up = JobType("add_up", input=Numbers, continues_with=report)
job_types = JobTypes(report, add_up)
processors = Processors(job_types)

spark = local_session(2, settings={"spark.log.level": "OFF"})  # one, which all handlers share
running = threading.Event()


# A plain function, since Spark blocks: it runs in a thread. A short lease, so that its loss is soon found.
@processors.handles(add_up, lease=LeasePolicy(seconds=10))
def run_add_up(attempt: Attempt[Numbers, str]) -> Outcome[str]:
    numbers = attempt.input

    def slowly(rows: Iterable[int]) -> Iterable[int]:
        time.sleep(numbers.seconds_a_task)
        return rows

    def show(progress: SparkProgress) -> None:
        if progress.active:
            running.set()

    with spark_scope(attempt, spark, on_progress=show, every=0.1):
        total = spark.sparkContext.parallelize(range(numbers.upto + 1), 4).mapPartitions(slowly).sum()
    return attempt.continue_with(report, Total(total=int(total)))


@processors.handles(report)
async def run_report(attempt: Attempt[Total, str]) -> Outcome[str]:
    return f"the total is {attempt.input.total}"


def main() -> None:
    with Client(PostgresState(os.environ["QUEUERT_URL"]), job_types) as client:
        worker = InProcessWorker(client, processors, concurrency=2)
        stop = threading.Event()
        thread = threading.Thread(target=work_until, args=(worker, stop))
        thread.start()
        try:
            print(client.start_and_wait(add_up, Numbers(upto=100), timeout=120))
            running.clear()
            endless = client.start_chain(add_up, Numbers(upto=100, seconds_a_task=3600))
            running.wait(120)
            client.cancel_chains([endless], reason="nobody wants it any more")
            try:
                endless.result(timeout=30)
            except ChainCancelledError as error:
                print(error.reason)
        finally:
            stop.set()
            thread.join()
        while spark.sparkContext.statusTracker().getActiveJobsIds():
            time.sleep(0.1)  # Spark lists a job for a moment after it has ended
        print("no Spark job runs")
    spark.stop()


def work_until(worker: InProcessWorker, stop: threading.Event) -> None:
    async def work() -> None:
        async with worker:
            await asyncio.to_thread(stop.wait)

    asyncio.run(work())


if __name__ == "__main__":
    main()
