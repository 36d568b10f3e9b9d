"""The harness of the tests that break things: a database with a witness, and workers, in processes and in this one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from queuert import AsyncClient, InProcessWorker, PostgresState, Processors
from queuert.policies import LeasePolicy
from queuert.state.adapter import StateAdapter
from queuert.testing.events import EventLog
from tests.faults.application import JOB_TYPES, LASTING, LEASE, patient, processors_for, threaded
from tests.faults.witness import Witness
from tests.support.harness import Harness
from tests.support.waiting import START, until
from tests.support.worker_process import WorkerProcess

MODES = pytest.mark.parametrize("job_type", [patient, threaded], ids=lambda job_type: str(job_type.name))
"""Job types whose handlers are coroutines, and plain functions in threads."""


class FaultHarness(Harness):
    """A client, workers in this process and in others, and a witness of all changes of rows."""

    def __init__(self, dsn: str) -> None:
        super().__init__(PostgresState(dsn), job_types=JOB_TYPES)
        self.dsn = dsn
        self.witness = Witness(dsn)
        self._processes: list[WorkerProcess] = []

    def spawn(
        self, *, url: str | None = None, lease: LeasePolicy = LEASE, answer_timeout: float = 30.0, **settings: Any
    ) -> WorkerProcess:
        """Start a worker's process, with settings of InProcessWorker."""
        lease_seconds = (lease.seconds, lease.renewal_interval)
        given = {"name": "child", "lease": lease_seconds, "answer_timeout": answer_timeout, **settings}
        return self._spawned("-m", "tests.faults.child", json.dumps(given), url=url)

    def command(
        self, *options: str, url: str | None = None, application: str = "tests.faults.application:processors"
    ) -> WorkerProcess:
        """Start ``queuert worker`` as a process; it sends no events."""
        arguments = ("-m", "queuert", "worker", application, "--log-level", "error", *options)
        return self._spawned(*arguments, url=url)

    def _spawned(self, *arguments: str, url: str | None) -> WorkerProcess:
        process = WorkerProcess(*arguments, url=url or self.dsn, records=self.dsn)
        self._processes.append(process)
        return process

    def worker(
        self,
        processors: Processors | Sequence[Processors] | None = None,
        *,
        client: AsyncClient | None = None,
        state: StateAdapter | None = None,
        log: EventLog | None = None,
        lease: LeasePolicy = LASTING,
        **settings: Any,
    ) -> InProcessWorker:
        """Return a worker in this process with a client of its own, not started; the harness stops it at the end."""
        client = client or self.new_client(state, observability=log or self.log)
        processors = processors or processors_for(self.dsn, lease=lease)
        return super().worker(processors, client=client, **{"shutdown_timeout": 2.0, **settings})

    async def step(self, job_id: str, name: str, attempt: int = 1) -> None:
        """Wait until an attempt has reached this step."""
        what = f"attempt {attempt} of {job_id}: {name}"
        await until(lambda: self.witness.has_step(job_id, name, attempt), what, START)

    async def disconnected(self) -> None:
        """Wait until the server has ended the sessions of killed processes: their last statements may be renewals."""
        await until(lambda: self.witness.sessions() == 0, "the sessions of the killed process are over", START)

    async def outlast_leases(self) -> None:
        """Wait until all present leases would have expired without renewals."""
        ends = self.witness.one("select max(lease_expires_at) from queuert.job")
        await until(lambda: self.witness.one("select clock_timestamp() > %s", ends), "the leases of then are over")

    async def status(self, job_id: str, status: str) -> None:
        """Wait until a job has this status."""
        await until(lambda: self.witness.job(job_id)[0] == status, f"{job_id} is {status}")

    async def close(self) -> None:
        """End all workers and processes."""
        for process in self._processes:
            process.close()
        await super().close()
        self.witness.close()
