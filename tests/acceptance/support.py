"""What the acceptance tests share: job types, and a ground with clients and workers on any store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from queuert import (
    AsyncChain,
    AsyncClient,
    Attempt,
    InProcessWorker,
    JobType,
    JobTypes,
    LeasePolicy,
    Processors,
    RetryPolicy,
)
from queuert.ids import new_token
from queuert.state.adapter import StateAdapter
from queuert.state.types import ClaimedJob, ClaimRequest, Finish, FinishKind
from queuert.testing.events import EventLog
from tests.worker.support import AT_ONCE, WAIT, Gate, echo, in_time, until

__all__ = [
    "AT_ONCE", "BRIEF", "JOB_TYPES", "LATER", "WAIT", "Gate", "Ground", "anything", "echo", "in_time",
    "kept", "number", "text",
    "until",
]  # fmt: skip

BRIEF = LeasePolicy(seconds=0.5, renew_every=0.1)
"""Of workers that look often for what the dead had. Where a test counts attempts, nothing that runs may have it."""

LATER = RetryPolicy(initial_delay=3600.0, max_delay=3600.0, jitter=0.0)
"""A failed attempt is not tried again while a test lasts, unless it is triggered."""

number = JobType("number", input=int, output=int)
text = JobType("text", input=str, output=str)
anything = JobType("anything", input=Any, output=Any)
JOB_TYPES = JobTypes(number, text, anything)


class Ground:
    """One store with clients and workers, each with connections of its own as separate processes would have.

    Args:
        make: the store of a place by its name: a schema, a namespace, a file.
        job_types: that the clients know.
    """

    def __init__(self, make: Callable[[str], StateAdapter], job_types: JobTypes = JOB_TYPES) -> None:
        self._make = make
        self._workers: list[InProcessWorker] = []
        self._clients: list[AsyncClient] = []
        self._others: list[Ground] = []
        self.job_types = job_types
        self.log = EventLog()
        self.state = make("main")
        self.client = self.new_client()
        self.processors = self.group()

    # --- parties ------------------------------------------------------------------------------------------------------

    def knows(self, job_types: JobTypes) -> None:
        """Begin anew with other job types, before anything was used."""
        self.job_types = job_types
        self.client = self.new_client()
        self.processors = self.group()

    def other(self, place: str) -> Ground:
        """The ground of another place on the same server, or in the same directory; it goes with this one."""
        other = Ground(lambda _: self._make(place), self.job_types)
        self._others.append(other)
        return other

    def new_client(self, **settings: Any) -> AsyncClient:
        """One more client; the ground closes it."""
        client = AsyncClient(self.state, self.job_types, **{"observability": self.log, **settings})
        self._clients.append(client)
        return client

    def group(self, **settings: Any) -> Processors:
        """Processors of the ground's job types; failed attempts are tried again at once."""
        return Processors(self.job_types, **{"retry": AT_ONCE, **settings})

    def handles(self, job_type: JobType[Any, Any], by: Callable[[Attempt[Any, Any]], Any], **settings: Any) -> None:
        """Register a handler with the ground's processors."""
        self.processors.handles(job_type, **settings)(by)

    def worker(
        self,
        processors: Processors | Sequence[Processors] | None = None,
        *,
        client: AsyncClient | None = None,
        **settings: Any,
    ) -> InProcessWorker:
        """A worker with a client of its own, not started; the ground stops it at the end."""
        name = f"worker-{len(self._workers)}"
        worker = InProcessWorker(
            client or self.new_client(), processors or self.processors, **{"name": name, **settings}
        )
        self._workers.append(worker)
        return worker

    async def close(self) -> None:
        """Stop all workers, close all clients."""
        for worker in self._workers:
            await worker.stop(shutdown_timeout=0)
        for client in self._clients:
            await client.aclose()
        for other in self._others:
            await other.close()

    # --- a worker that dies -------------------------------------------------------------------------------------------

    async def claimed_by_the_dead(
        self, job_type: JobType[Any, Any], *, seconds: float = 0.2, holder: str = "dead-worker"
    ) -> ClaimedJob:
        """Claim a job as a worker does that is then never heard of again."""
        store = self.state.async_store(max_connections=1)
        await store.open()
        try:
            [job] = await store.claim(ClaimRequest({job_type.name: seconds}, 1, holder, new_token()))
        finally:
            await store.aclose()
        return job

    async def ended_late(self, job: ClaimedJob, output: str) -> bool:
        """Complete a job by the lease that a dead worker had; whether that was written."""
        store = self.state.async_store(max_connections=1)
        await store.open()
        try:
            [result] = await store.finish([Finish(job, FinishKind.COMPLETE, output=output)])
        finally:
            await store.aclose()
        return result.written


def kept(chain: AsyncChain[Any]) -> int | None:
    """Seconds that a closed chain is kept after its end; None: it has no end of its own."""
    if chain.expires_at is None or chain.closed_at is None:
        return None
    return round((chain.expires_at - chain.closed_at).total_seconds())
