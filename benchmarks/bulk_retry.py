"""Whether a bulk retry is done once, whoever dies: `python -m benchmarks.bulk_retry --jobs 100000`.

Jobs fail once. While workers run, an operator retries all of them by filter, and its process is killed with SIGKILL in
the middle; so is that of a second one, which goes on; the rest is the workers'. Then the event log and the jobs must
say that each was retried once, and completed once, by its second attempt.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from queuert import Attempt, Client, JobType, JobTypes, NewChain, Outcome, PostgresState
from queuert.bulk_operations import BulkOperation
from queuert.cli import main as queuert
from queuert.embedded import EmbeddedPostgres
from queuert.ids import new_token
from queuert.jobs import ChainStatus, JobError
from queuert.notify.in_process import InProcessNotify
from queuert.state.types import ClaimRequest, Finish, FinishKind
from queuert.worker import Processors

flaky = JobType("flaky", input=int, output=int)
JOB_TYPES = JobTypes(flaky)
processors = Processors(JOB_TYPES)

_PAGE = 500
_PAUSE = 0.05
_ROOT = Path(__file__).parents[1]
_STARTED = ("start", "retry", "--type", flaky.name, "--by", "benchmark", "--yes")

_VERDICT = """
SELECT count(*) AS jobs,
    count(*) FILTER (WHERE job.status = 'completed' AND job.attempt = 2) AS completed_by_second_attempt,
    count(*) FILTER (WHERE told.retried = 1) AS retried_once,
    count(*) FILTER (WHERE told.completed = 1) AS completed_once
FROM queuert.job AS job
JOIN (
    SELECT job_id, count(*) FILTER (WHERE kind = 'retried_by_hand') AS retried,
        count(*) FILTER (WHERE kind = 'completed') AS completed
    FROM queuert.event WHERE type = 'flaky' GROUP BY job_id
) AS told ON told.job_id = job.id
WHERE job.type = 'flaky'
"""


@processors.handles(flaky)
async def succeed(attempt: Attempt[int, int]) -> Outcome[int]:
    """Succeed: the first attempts have failed before any worker runs."""
    return attempt.input


def load(client: Client, jobs: int) -> None:
    """Write jobs whose first attempt has failed."""
    store = client.state.sync_store(max_connections=1)
    store.open()
    for begin in range(0, jobs, 10_000):
        client.start_chains([NewChain(flaky, number) for number in range(begin, min(jobs, begin + 10_000))])
    error = JobError("fail", "the gateway is down")
    while claimed := store.claim(ClaimRequest({flaky.name: 60.0}, _PAGE, "loader", new_token())):
        store.finish([Finish(job, FinishKind.FAIL, error=error) for job in claimed])
    store.close()


@contextmanager
def process(dsn: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the command line, which is killed at the end."""
    started = subprocess.Popen(
        [sys.executable, "-m", "queuert", *arguments],
        cwd=_ROOT,
        env={**os.environ, "QUEUERT_URL": dsn},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def seen_after(client: Client, count: int, timeout: float) -> BulkOperation:
    """Wait until the operation has looked at so many chains, or is closed."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        for operation in client.list_bulk_operations(limit=1):
            if operation.seen >= count or operation.status is not ChainStatus.OPEN:
                return operation
        time.sleep(_PAUSE)
    raise TimeoutError(f"the operation did not look at {count} chains within {timeout:g} s")


def measure(dsn: str, jobs: int, workers: int, timeout: float) -> dict[str, Any]:
    """Run it on a database that has Queuert's tables; return what happened."""
    with Client(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client, ExitStack() as stack:
        load(client, jobs)
        for _ in range(workers):
            stack.enter_context(process(dsn, "worker", "benchmarks.bulk_retry:processors", "--concurrency", "20"))
        began = time.monotonic()
        killed = []
        for arguments, share in ((_STARTED, 0.1), (("run",), 0.4)):
            with process(dsn, "operations", *arguments) as operator:
                killed.append(seen_after(client, max(1, int(share * jobs)), timeout).seen)
                operator.send_signal(signal.SIGKILL)
        operation = seen_after(client, jobs + 1, timeout)
        operation_seconds = time.monotonic() - began
        while client.list_chains(job_types=[flaky], statuses=[ChainStatus.OPEN], limit=1).items:
            time.sleep(_PAUSE)
        seconds = time.monotonic() - began
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute(_VERDICT)
        names = [column.name for column in cursor.description or ()]
        verdict = dict(zip(names, cursor.fetchone() or (), strict=True))
    return {
        "status": operation.status.value,
        "seen": operation.seen,
        "changed": operation.changed,
        "skipped": operation.skipped,
        "killed_at_seen": killed,
        "operation_seconds": round(operation_seconds, 1),
        "seconds": round(seconds, 1),
        **verdict,
    }


def is_exactly_once(found: dict[str, Any], jobs: int) -> bool:
    """Whether each job was retried once and completed once."""
    counts = ("seen", "changed", "jobs", "completed_by_second_attempt", "retried_once", "completed_once")
    return found["status"] == "completed" and all(found[name] == jobs for name in counts)


def main() -> int:
    """Run it on a Postgres of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for each part")
    args = parser.parse_args()
    with EmbeddedPostgres() as server:
        os.environ["QUEUERT_URL"] = server.dsn()
        if queuert(["migrate", "up"]):
            return 1
        found = measure(server.dsn(), args.jobs, args.workers, args.timeout)
    print(json.dumps(found, indent=2))
    return 0 if is_exactly_once(found, args.jobs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
