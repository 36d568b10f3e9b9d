"""The harness of a test: a client, workers and the events of all of them, on one store.

`Harness` runs on any store; `PostgresHarness` also reads and writes the tables. The harnesses that kill processes and
watch the store meanwhile (`tests/faults/harness.py`, `tests/redis/harness.py`) are subclasses of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, LiteralString

import psycopg

from queuert import AsyncClient, Attempt, InProcessWorker, JobStatus, JobType, JobTypes, PostgresState, Processors
from queuert.ids import new_token
from queuert.jobs import Job
from queuert.notify import NotifyAdapter
from queuert.observability import Observers
from queuert.state.adapter import StateAdapter
from queuert.state.types import ClaimedJob, ClaimRequest, Finish, FinishKind
from queuert.testing.events import EventLog
from tests.support.job_types import AT_ONCE, JOB_TYPES


class Harness:
    """A client and workers on one store, which emit their events to one log.

    Args:
        state: the store.
        job_types: what the clients know.
        notify: the notifications of all clients; by default those of the store.
        client_per_worker: whether each worker has a client of its own, with connections of its own, as in a process
            apart; otherwise all share `client`.
        poll_interval: of the workers, in seconds.
    """

    def __init__(
        self,
        state: StateAdapter,
        *,
        job_types: JobTypes = JOB_TYPES,
        notify: NotifyAdapter | None = None,
        client_per_worker: bool = False,
        poll_interval: float | None = None,
    ) -> None:
        self.state = state
        self.job_types = job_types
        self.notify = notify
        self.log = EventLog()
        self.workers: list[InProcessWorker] = []
        self._clients: list[AsyncClient] = []
        self._client_per_worker = client_per_worker
        self._poll_interval = poll_interval
        self.client = self.new_client()
        self.processors = self.new_processors()

    def new_client(self, state: StateAdapter | None = None, **settings: Any) -> AsyncClient:
        """Return one more client; the harness closes it."""
        given: dict[str, Any] = {"notify": self.notify, "observability": self.log, **settings}
        client = AsyncClient(state or self.state, self.job_types, **given)
        self._clients.append(client)
        return client

    def new_processors(self, **settings: Any) -> Processors:
        """Return processors of the harness's job types; they retry failed attempts at once."""
        return Processors(self.job_types, **{"retry": AT_ONCE, **settings})

    def handles(
        self, job_type: JobType[Any, Any], handler: Callable[[Attempt[Any, Any]], Any], **settings: Any
    ) -> None:
        """Register a handler with the harness's processors; only the tests of typing check its types."""
        self.processors.handles(job_type, **settings)(handler)

    def worker(
        self,
        processors: Processors | Sequence[Processors] | None = None,
        *,
        client: AsyncClient | None = None,
        state: StateAdapter | None = None,
        **settings: Any,
    ) -> InProcessWorker:
        """Return a worker that is not started; the harness stops it at the end of the test.

        Args:
            processors: instead of the harness's own.
            client: instead of the one that it would have.
            state: of its client, which is then its own.
            settings: of `InProcessWorker`. The name is by default ``worker`` if all share a client, else ``worker-0``,
                ``worker-1`` and so on.
        """
        if client is None:
            client = self.new_client(state) if state is not None or self._client_per_worker else self.client
        name = f"worker-{len(self.workers)}" if self._client_per_worker else "worker"
        given = {"name": name, "shutdown_timeout": 10.0, "poll_interval": self._poll_interval, **settings}
        worker = InProcessWorker(client, self.processors if processors is None else processors, **given)
        self.workers.append(worker)
        return worker

    async def job(self, job_id: str) -> Job:
        """Read a job again."""
        return await self.client.get_job(job_id)

    async def stop(self) -> None:
        """Stop all workers without waiting for their handlers, and close all clients."""
        for worker in self.workers:
            await worker.stop(shutdown_timeout=0)
        for client in self._clients:
            await client.aclose()

    async def close(self) -> None:
        """Stop, and close everything else of the harness."""
        await self.stop()

    # --- a worker that dies -------------------------------------------------------------------------------------------

    async def claim_and_die(
        self, job_type: JobType[Any, Any], *, seconds: float = 0.2, worker: str = "dead-worker"
    ) -> ClaimedJob:
        """Claim a job as a worker that dies at once; its lease lasts for so many seconds."""
        store = self.state.async_store(max_connections=1)
        await store.open()
        try:
            [job] = await store.claim(ClaimRequest({job_type.name: seconds}, 1, worker, new_token()))
        finally:
            await store.aclose()
        return job

    async def finish_late(self, job: ClaimedJob, output: str) -> bool:
        """Complete a job by the lease of a dead worker; return whether that was written."""
        store = self.state.async_store(max_connections=1)
        await store.open()
        try:
            [result] = await store.finish([Finish(job, FinishKind.COMPLETE, output=output)])
        finally:
            await store.aclose()
        return result.written


class PostgresHarness(Harness):
    """The harness on a Postgres database, whose tables it can also read and write.

    Args:
        dsn: the database.
        through: what the client and the workers connect to, where that is not the database itself.
        answer_timeout: seconds, of the store.
        settings: of `Harness`.
    """

    def __init__(self, dsn: str, *, through: str | None = None, answer_timeout: float = 30.0, **settings: Any) -> None:
        self.dsn = dsn
        super().__init__(PostgresState(through or dsn, answer_timeout=answer_timeout), **settings)
        self._sql = psycopg.connect(dsn, autocommit=True)

    async def close(self) -> None:
        """Stop, and disconnect."""
        await super().close()
        self._sql.close()

    def rows(self, query: LiteralString, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        cursor = self._sql.execute(query, values or None)
        return cursor.fetchall() if cursor.description else []

    def one(self, query: LiteralString, *values: Any) -> Any:
        """Return the only value of a query."""
        return self.rows(query, *values)[0][0]

    def count(self) -> int:
        """Return how many jobs there are."""
        return int(self.one("select count(*) from queuert.job"))

    async def statuses(self) -> dict[str, JobStatus]:
        """Return the status of each job."""
        return {row[0]: JobStatus(row[1]) for row in self.rows("select id, status from queuert.job")}

    def insert(self, type: str, input: str, *, id: str, attempt: int = 0) -> str:
        """Insert a job by hand, with any JSON text that Postgres accepts."""
        self.rows(
            "insert into queuert.job (id, chain_id, chain_type, chain_status, type, input, attempt)"
            " values (%s, %s, %s, 'open', %s, %s::jsonb, %s)",
            *(id, id, type, type, input, attempt),
        )
        return id

    def sessions(self) -> list[str]:
        """Return the connections of queuert to this database: what each is doing."""
        found = self.rows(
            "select pid || ' ' || application_name || ': ' || state || ': ' || query from pg_stat_activity"
            " where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"
        )
        return [row[0] for row in found]


class NoNotifications:
    """A notify adapter that sends nothing, and says so."""

    healthy = False

    def open(self, observers: Observers) -> None:
        return

    def close(self) -> None:
        return

    def publish(self, topic: Any, keys: Any) -> None:
        return

    def subscribe(self, topic: Any, callback: Callable[[Any], None]) -> NoNotifications:
        return self
