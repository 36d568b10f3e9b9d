"""A worker and a client of any version, as processes: run with PYTHONPATH naming the version.

It uses nothing but what every version since the first has, and is no module of the tests when it runs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any

from queuert import Attempt, Client, InProcessWorker, JobType, JobTypes, NewChain, Outcome, PostgresState, Processors
from queuert.client import AsyncClient

double = JobType("double", input=int, output=int, continues_with="double")
waiting = JobType("waiting", input=int, output=int)
JOB_TYPES = JobTypes(double, waiting)
BATCH = 5


def processors() -> Processors:
    """Handlers that say who ran them, in the caller's own table, within the transaction that ends the job."""
    made = Processors(JOB_TYPES)

    async def handle(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            who = (attempt.job_id, os.environ["VERSION"])
            await tx.connection.execute("INSERT INTO ran (job_id, version) VALUES (%s, %s)", who)
            if attempt.type == double.name and attempt.input > 0 and attempt.input % 3 == 0:
                return tx.finish(attempt.continue_with(double, 1))
            return tx.finish(2 * attempt.input)

    made.handles(double)(handle)
    made.handles(waiting)(handle)
    return made


def work(url: str) -> int:
    """Be a worker until told to stop."""
    client = AsyncClient(PostgresState(url), JOB_TYPES)
    return InProcessWorker(client, processors(), name=os.environ["VERSION"], concurrency=4, poll_interval=0.5).run()


def start(url: str) -> int:
    """Start chains, some of which wait for others, until told to stop; then say which were acknowledged."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    acknowledged: list[str] = []
    with Client(PostgresState(url), JOB_TYPES) as client:
        while not ended.is_set():
            ids = [chain.id for chain in client.start_chains([NewChain(double, number) for number in range(BATCH)])]
            acknowledged += ids
            last: Any = client.start_chain(waiting, 1, blockers=ids)
            acknowledged.append(last.id)
            print(json.dumps(acknowledged[-1]), flush=True)
            time.sleep(0.05)
    print(json.dumps(acknowledged), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit({"work": work, "start": start}[sys.argv[1]](os.environ["DSN"]))
