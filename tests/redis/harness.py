"""The harness of the attacks on the Redis store: workers, records of what ran, and a scan at the end."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from queuert import AsyncClient, InProcessWorker, JobStatus, Processors
from queuert.ids import new_id
from queuert.notify import NotifyAdapter
from queuert.observability.events import AttemptCompleted
from queuert.policies import LeasePolicy
from queuert.state.adapter import StateAdapter
from queuert.state.redis import RedisState
from queuert.testing.redis_scan import scan
from tests.redis.application import JOB_TYPES, LASTING, LEASE, processors_for
from tests.support.harness import Harness
from tests.support.waiting import START, until
from tests.support.worker_process import WorkerProcess


def needs_waitaof(url: str) -> None:
    """Skip the test on a server that cannot tell what it has flushed."""
    with redis.Redis.from_url(url) as client:
        try:
            client.execute_command("WAITAOF", 0, 0, 0)
        except redis.ResponseError:
            pytest.skip("this server knows no WAITAOF")


@dataclass(frozen=True)
class Keys:
    """The keys of a namespace."""

    client: Any
    """It is of any type: the driver does not tell those of free commands."""
    prefix: str

    def __call__(self, name: str) -> str:
        """One key of the namespace."""
        return f"{self.prefix}{name}"

    def names(self, pattern: str) -> list[str]:
        """The names of those that match."""
        return sorted(key.removeprefix(self.prefix) for key in self.client.keys(self(pattern)))


class RedisHarness(Harness):
    """A client on a namespace of a Redis, workers in this process and in others, and what their handlers record."""

    def __init__(self, url: str, *, namespace: str | None = None, records: str | None = None) -> None:
        self.url = url
        self.namespace = namespace or new_id()
        self.records = records or url
        self.redis = redis.Redis.from_url(url, decode_responses=True)
        self.notes = redis.Redis.from_url(self.records, decode_responses=True)
        self.keeps_all = True
        """Whether the server keeps what it acknowledged; otherwise what it forgot may be done again."""
        self._processes: list[WorkerProcess] = []
        super().__init__(self.state_at(), job_types=JOB_TYPES)

    def state_at(self, url: str | None = None, *, wait_for_flush: bool = False) -> RedisState:
        """The state of this namespace, by another way if one is named."""
        return RedisState(url or self.url, namespace=self.namespace, answer_timeout=10.0, wait_for_flush=wait_for_flush)

    def key(self, name: str) -> str:
        """A key of the namespace."""
        return f"{{queuert:{self.namespace}}}:{name}"

    # --- workers ------------------------------------------------------------------------------------------------------

    def spawn(self, *, url: str | None = None, lease: LeasePolicy = LEASE, **settings: Any) -> WorkerProcess:
        """Start a worker's process, with settings of InProcessWorker."""
        given = json.dumps({"name": "child", "lease": (lease.seconds, lease.renewal_interval), **settings})
        arguments = ("-m", "tests.redis.child", self.namespace, given)
        process = WorkerProcess(*arguments, url=url or self.url, records=self.records)
        self._processes.append(process)
        return process

    def worker(
        self,
        processors: Processors | Sequence[Processors] | None = None,
        *,
        client: AsyncClient | None = None,
        state: StateAdapter | None = None,
        url: str | None = None,
        notify: NotifyAdapter | None = None,
        lease: LeasePolicy = LASTING,
        **settings: Any,
    ) -> InProcessWorker:
        """A worker in this process with a client of its own, not started; the harness stops it at the end."""
        client = client or self.new_client(state or self.state_at(url), notify=notify)
        processors = processors or processors_for(self.records, lease=lease)
        return super().worker(processors, client=client, **{"shutdown_timeout": 2.0, **settings})

    # --- what was noted -----------------------------------------------------------------------------------------------

    def open(self, gate: str) -> None:
        """Let handlers pass a gate, now and later."""
        self.notes.sadd("test:gates", gate)

    def detail(self, job_id: str, name: str, attempt: int = 1) -> str | None:
        """What an attempt noted when it had come so far."""
        found: Any = self.notes.hget("test:steps", f"{job_id}\n{attempt}\n{name}")
        return None if found is None else str(found)

    async def step(self, job_id: str, name: str, attempt: int = 1) -> None:
        """Wait until an attempt has come so far."""
        reached = f"attempt {attempt} of {job_id}: {name}"
        await until(lambda: self.detail(job_id, name, attempt) is not None, reached, START)

    def begun(self) -> dict[tuple[str, int], int]:
        """How often each attempt began, by job and number."""
        found: Any = self.notes.hgetall("test:begun")
        noted: Mapping[str, str] = found
        split = {tuple(name.rsplit("\n", 1)): int(times) for name, times in noted.items()}
        return {(id, int(number)): times for (id, number), times in split.items()}

    # --- the store ----------------------------------------------------------------------------------------------------

    def count_jobs(self) -> Counter[str]:
        """How many jobs of all types have each status, by the store's own numbers, all of one moment.

        Of several moments they would miss a job that goes back from running to ready in between.
        """
        keys = list(self.redis.scan_iter(match=self.key("n:*"), count=1000))
        with self.redis.pipeline(transaction=True) as together:
            for key in keys:
                together.hgetall(key)
            found: list[dict[str, str]] = together.execute()
        total: Counter[str] = Counter()
        for numbers in found:
            total.update({status: int(number) for status, number in numbers.items()})
        return total

    def count(self, status: JobStatus | str) -> int:
        """How many jobs of all types have a status."""
        return self.count_jobs()[str(status)]

    async def completed(self, wanted: int, timeout: float = 40.0) -> None:
        """Wait until so many jobs are completed."""
        await until(lambda: self.count("completed") >= wanted, f"{wanted} jobs are completed", timeout)

    async def drained(self, timeout: float = 40.0) -> None:
        """Wait until every job has ended."""
        open_statuses = {"ready", "scheduled", "running", "blocked"}
        await until(lambda: not open_statuses & (+self.count_jobs()).keys(), "all jobs have ended", timeout)

    async def expired(self, job_id: str, type: str = "patient") -> None:
        """Wait until the lease of a job is over, and nobody has reaped it."""

        def over() -> bool:
            ends: Any = self.redis.zscore(self.key(f"lease:{type}"), job_id)
            return ends is not None and float(ends) < self.now()

        await until(over, f"the lease of {job_id} is over")

    async def outlast_leases(self, type: str) -> None:
        """Wait until all leases that are held now would be over, had nobody renewed them."""
        held: Any = self.redis.zrange(self.key(f"lease:{type}"), 0, -1, withscores=True)
        ends = max(end for _, end in held)
        await until(lambda: self.now() > ends, "the leases of then are over")

    def now(self) -> float:
        """The server's time in microseconds."""
        time: Any = self.redis.time()
        seconds, micros = time
        return float(seconds) * 1e6 + float(micros)

    def faults(self) -> list[str]:
        """What the scan finds."""
        return scan(self.redis, self.namespace)

    def check(self) -> None:
        """The namespace is whole, no attempt began twice, and no worker believes to have ended what another ended."""
        assert self.faults() == []
        if not self.keeps_all:
            return
        assert {attempt: times for attempt, times in self.begun().items() if times != 1} == {}
        logs = [self.log, *(process.log for process in self._processes)]
        completed = [event.job_id for log in logs for event in log.of(AttemptCompleted)]
        assert len(completed) == len(set(completed))

    async def stop(self) -> None:
        """End all processes and workers, and close all clients."""
        for process in self._processes:
            await asyncio.to_thread(process.close)
        await super().stop()

    async def close(self) -> None:
        """Stop, and disconnect."""
        await super().close()
        self.redis.close()
        self.notes.close()
