"""The ground on which workers are killed, stopped and cut off: a database with a witness, and workers of both kinds."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queuert import AsyncClient, InProcessWorker, LeasePolicy, PostgresState
from queuert.observability.events import WorkerStarted
from queuert.testing.events import EventLog
from tests.faults.application import JOB_TYPES, LASTING, LEASE, RECORDS, patient, processors_for, threaded
from tests.faults.witness import Witness

WAIT = 20.0
"""Seconds: an upper bound for what takes a lease or two."""

START = 40.0
"""Seconds: an upper bound for what begins with the start of a process, an interpreter with all that it imports."""

MODES = pytest.mark.parametrize("job_type", [patient, threaded], ids=lambda job_type: str(job_type.name))
"""Handlers that are coroutines, and plain functions in threads."""

_ROOT = Path(__file__).parents[2]


async def until(condition: Callable[[], object], what: str, timeout: float = WAIT) -> None:
    """Wait for what only a look can tell, such as a row."""
    try:
        async with asyncio.timeout(timeout):
            while not condition():  # noqa: ASYNC110  (nobody tells)
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not so within {timeout:g} s: {what}") from None


class WorkerProcess:
    """A worker that can be killed, frozen and asked to stop. Its events come into ``log``."""

    def __init__(self, *arguments: str, url: str, records: str) -> None:
        self.log = EventLog()
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=_ROOT,
            env={**os.environ, "QUEUERT_URL": url, RECORDS: records},
            stdout=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):
                self.log.emit(pickle.loads(base64.b64decode(line)))

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    async def freeze(self) -> None:
        """Stop all its threads, as a suspended machine would; it has stopped when this returns."""
        self.send(signal.SIGSTOP)
        await until(lambda: self.is_frozen, "the process has stopped")

    @property
    def peak_megabytes(self) -> float:
        """The most memory that the process has had so far."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii", errors="replace")
        [peak] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(peak.split()[1]) / 1024

    @property
    def is_frozen(self) -> bool:
        """Whether it stands still, by its own doing or ours."""
        assert not self.has_ended, f"the process has ended with {self._process.returncode}"
        state = Path(f"/proc/{self._process.pid}/stat")
        return state.read_text().rpartition(")")[2].split()[0] == "T"

    def resume(self) -> None:
        """Let it go on."""
        self.send(signal.SIGCONT)

    async def kill(self) -> None:
        """Kill it as a crash would, and wait for its end."""
        self.send(signal.SIGKILL)
        assert await self.ended() == -signal.SIGKILL

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    async def ended(self, timeout: float = START) -> int:
        """Wait for its end, and for all that it told; the exit code, negative for a signal."""
        await until(lambda: self.has_ended, "the worker's process has ended", timeout)
        # What it told last may be in the pipe yet.
        await until(lambda: not self._reader.is_alive(), "its events are read", timeout)
        return self._process.wait()

    async def started(self) -> str:
        """Wait until it claims; the holder that it writes into rows."""
        return (await self.log.wait_for(WorkerStarted, timeout=START)).worker

    def close(self) -> None:
        """Get rid of it, whatever its state."""
        if not self.has_ended:
            self.send(signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Ground:
    """A database with a witness, a client, and workers: as processes, and in this one."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.log = EventLog()
        self.witness = Witness(dsn)
        self.client = AsyncClient(PostgresState(dsn), JOB_TYPES, observability=self.log)
        self._processes: list[WorkerProcess] = []
        self._workers: list[InProcessWorker] = []
        self._clients: list[AsyncClient] = [self.client]

    def spawn(
        self, *, url: str | None = None, lease: LeasePolicy = LEASE, answer_timeout: float = 30.0, **settings: Any
    ) -> WorkerProcess:
        """Start a worker's process, with settings of InProcessWorker."""
        lease_seconds = (lease.seconds, lease.renewal_interval)
        given = {"name": "child", "lease": lease_seconds, "answer_timeout": answer_timeout, **settings}
        return self._spawned("-m", "tests.faults.child", json.dumps(given), url=url)

    def command(self, *options: str, url: str | None = None) -> WorkerProcess:
        """Start ``queuert worker`` as a process; it tells no events."""
        arguments = ("-m", "queuert", "worker", "tests.faults.application:processors", "--log-level", "error", *options)
        return self._spawned(*arguments, url=url)

    def _spawned(self, *arguments: str, url: str | None) -> WorkerProcess:
        process = WorkerProcess(*arguments, url=url or self.dsn, records=self.dsn)
        self._processes.append(process)
        return process

    def worker(
        self,
        *,
        name: str = "worker",
        state: PostgresState | None = None,
        log: EventLog | None = None,
        lease: LeasePolicy = LASTING,
        shutdown_timeout: float = 2.0,
        **settings: Any,
    ) -> InProcessWorker:
        """A worker in this process, not started; the ground stops it at the end."""
        client = AsyncClient(state or PostgresState(self.dsn), JOB_TYPES, observability=log or self.log)
        worker = InProcessWorker(
            client, processors_for(self.dsn, lease=lease), name=name, shutdown_timeout=shutdown_timeout, **settings
        )
        self._clients.append(client)
        self._workers.append(worker)
        return worker

    async def step(self, job_id: str, name: str, attempt: int = 1) -> None:
        """Wait until an attempt has come so far."""
        what = f"attempt {attempt} of {job_id}: {name}"
        await until(lambda: self.witness.has_step(job_id, name, attempt), what, START)

    async def outlast_leases(self) -> None:
        """Wait until all leases that are held now would be over, had nobody renewed them."""
        ends = self.witness.one("select max(lease_expires_at) from queuert.job")
        await until(lambda: self.witness.one("select clock_timestamp() > %s", ends), "the leases of then are over")

    async def status(self, job_id: str, status: str) -> None:
        """Wait until a job has this status."""
        await until(lambda: self.witness.job(job_id)[0] == status, f"{job_id} is {status}")

    async def close(self) -> None:
        """End all workers."""
        for process in self._processes:
            process.close()
        for worker in self._workers:
            await worker.stop(shutdown_timeout=0)
        for client in self._clients:
            await client.aclose()
        self.witness.close()
