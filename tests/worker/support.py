"""What tests of the worker share: job types, a stage with a client and workers, and ways to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, LiteralString, TypeVar

import psycopg
from pydantic import BaseModel

from queuert import (
    AsyncClient,
    Attempt,
    InProcessWorker,
    Job,
    JobStatus,
    JobType,
    JobTypes,
    LeasePolicy,
    Outcome,
    PostgresState,
    Processors,
    RetryPolicy,
)
from queuert.notify import NotifyAdapter
from queuert.testing.events import EventLog

WAIT = 20.0
"""Seconds: an upper bound for what takes milliseconds."""

SPAWN = 3 * WAIT
"""Seconds: an upper bound for what starts processes of Python. A test that waits for so long sets a longer timeout."""

T = TypeVar("T")

AT_ONCE = RetryPolicy(initial_delay=0.0, jitter=0.0)
"""Failed attempts are tried again without a pause."""

SHORT = LeasePolicy(seconds=1.0, renew_every=0.3)
"""For leases that are to run out: a machine that stands still for a second is enough."""

WATCHED = LeasePolicy(seconds=60.0, renew_every=0.3)
"""For leases that are to be found lost soon, and that run out for nothing else, however slow the machine is."""


class Order(BaseModel):
    """A model with a bit of everything."""

    name: str
    lines: list[int] = []


number = JobType("number", input=int, output=int)
text = JobType("text", input=str, output=str)
order = JobType("order", input=Order, output=Order)
anything = JobType("anything", input=Any, output=Any)
loop = JobType("loop", input=int, output=int, continues_with="loop")
relay = JobType("relay", input=int, continues_with=number)
JOB_TYPES = JobTypes(number, text, order, anything, loop, relay)


async def echo(attempt: Attempt[T, T]) -> Outcome[T]:
    """A handler that returns its input."""
    return attempt.input


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what only a look can tell, such as a row or the end of a session."""
    try:
        async with asyncio.timeout(WAIT):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not so within {WAIT:g} s: {what}") from None


async def none_left(look: Callable[[], Collection[object]], of_what: str) -> None:
    """Wait until a look finds nothing any more."""
    try:
        await until(lambda: not look(), of_what)
    except AssertionError:
        raise AssertionError(f"{of_what} are left: {look()}") from None


async def in_time(awaitable: Awaitable[T]) -> T:
    """Wait for something that must not hang."""
    return await asyncio.wait_for(awaitable, WAIT)


class Gate:
    """Where handlers wait until a test lets them go on; it knows who came."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[Attempt[Any, Any]] = asyncio.Queue()
        self._open = asyncio.Event()

    async def pass_through(self, attempt: Attempt[Any, Any]) -> None:
        """Say that we are here, and wait."""
        self.arrived.put_nowait(attempt)
        await self._open.wait()

    async def next(self) -> Attempt[Any, Any]:
        """The next attempt that arrives."""
        return await in_time(self.arrived.get())

    def open(self) -> None:
        """Let everybody pass, now and later."""
        self._open.set()


class Stage:
    """A client on a database of the test's own, and workers that tell their events to one log."""

    def __init__(
        self,
        dsn: str,
        *,
        notify: NotifyAdapter | None = None,
        through: str | None = None,
        answer_timeout: float = 30.0,
    ) -> None:
        """``through`` is what the client and the workers connect to, where that is not the database itself."""
        self.dsn = dsn
        self.log = EventLog()
        self.state = PostgresState(through or dsn, answer_timeout=answer_timeout)
        self.client = AsyncClient(self.state, JOB_TYPES, notify=notify, observability=self.log)
        self.processors = Processors(JOB_TYPES, retry=AT_ONCE)
        self.workers: list[InProcessWorker] = []
        self._sql = psycopg.connect(dsn, autocommit=True)

    def handles(
        self, job_type: JobType[Any, Any], handler: Callable[[Attempt[Any, Any]], Any], **settings: Any
    ) -> None:
        """Register a handler with the stage's processors; its types are for the tests of typing."""
        self.processors.handles(job_type, **settings)(handler)

    def worker(
        self,
        processors: Processors | Sequence[Processors] | None = None,
        *,
        name: str = "worker",
        concurrency: int = 1,
        shutdown_timeout: float = 10.0,
        poll_interval: float | None = None,
    ) -> InProcessWorker:
        """A worker that is not started; the stage stops it at the end of the test."""
        worker = InProcessWorker(
            self.client,
            self.processors if processors is None else processors,
            name=name,
            concurrency=concurrency,
            shutdown_timeout=shutdown_timeout,
            poll_interval=poll_interval,
        )
        self.workers.append(worker)
        return worker

    async def close(self) -> None:
        """Stop all workers, and the client."""
        for worker in self.workers:
            await worker.stop(shutdown_timeout=0)
        await self.client.aclose()
        self._sql.close()

    # --- the database -------------------------------------------------------------------------------------------------

    def rows(self, query: LiteralString, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        cursor = self._sql.execute(query, values or None)
        return cursor.fetchall() if cursor.description else []

    def one(self, query: LiteralString, *values: Any) -> Any:
        """The only value of a query."""
        return self.rows(query, *values)[0][0]

    async def job(self, job_id: str) -> Job:
        """A job, read anew."""
        return await self.client.get_job(job_id)

    async def statuses(self) -> dict[str, JobStatus]:
        """The status of each job."""
        return {row[0]: JobStatus(row[1]) for row in self.rows("select id, status from queuert.job")}

    def insert(self, type: str, input: str, *, id: str, attempt: int = 0) -> str:
        """A job written by hand, with any JSON text that Postgres takes."""
        self.rows(
            "insert into queuert.job (id, chain_id, chain_type, chain_status, type, input, attempt)"
            " values (%s, %s, %s, 'open', %s, %s::jsonb, %s)",
            *(id, id, type, type, input, attempt),
        )
        return id

    def sessions(self) -> list[str]:
        """The connections of queuert to this database: what each is doing."""
        found = self.rows(
            "select pid || ' ' || application_name || ': ' || state || ': ' || query from pg_stat_activity"
            " where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"
        )
        return [row[0] for row in found]
