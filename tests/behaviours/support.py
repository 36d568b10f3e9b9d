"""What tests of behaviours share: job types, and a world with a caller sync or async and workers on one database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, LiteralString

import psycopg

from queuert import (
    AsyncClient,
    Attempt,
    Client,
    InProcessWorker,
    JobType,
    JobTypes,
    LeasePolicy,
    PostgresState,
    Processors,
    RetryPolicy,
)
from queuert.notify import Notification, NotifyAdapter, Subscription
from queuert.notify.in_process import InProcessNotify
from queuert.observability import Observers
from queuert.state.adapter import StateAdapter
from queuert.testing.events import EventLog
from tests.worker.support import AT_ONCE, WAIT

QUICK = 0.05
"""Seconds between two polls where a test has no notifications."""

BRIEF = LeasePolicy(seconds=0.5, renew_every=0.1)
"""For a reaper that looks often; none is held, since a machine that stands still for a moment loses it."""

WATCHED = LeasePolicy(seconds=60.0, renew_every=0.1)
"""Whose loss is found soon; and it is lost for nothing else."""

number = JobType("number", input=int, output=int)
text = JobType("text", input=str, output=str)
last = JobType("last", input=int, output=str)
middle: JobType[int, int | str] = JobType("middle", input=int, output=int, continues_with=last)
first: JobType[int, int | str] = JobType("first", input=int, continues_with=(middle, last))
total = JobType("total", input=str, output=int, blockers=(number, ...))
pair = JobType("pair", input=None, output=str, blockers=(number, text))
JOB_TYPES = JobTypes(number, text, last, middle, first, total, pair)


class NoNotifications:
    """A notify adapter that carries nothing, and says so."""

    healthy = False

    def open(self, observers: Observers) -> None:
        return

    def close(self) -> None:
        return

    def publish(self, topic: Any, keys: Any) -> None:
        return

    def subscribe(self, topic: Any, callback: Callable[[Notification], None]) -> Subscription:
        return self


class Caller:
    """A client sync or async behind one face: every method is awaited, and so is all that handles do."""

    def __init__(self, client: AsyncClient | Client, dsn: str) -> None:
        self.client = client
        self._dsn = dsn

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return self._awaited(getattr(self.client, name))

    async def result(self, chain: Any, timeout: float = WAIT) -> Any:
        """The chain's output, when it has closed."""
        return await self._awaited(chain.result)(timeout)

    async def closed(self, chain: Any, timeout: float = WAIT) -> Any:
        """The chain, read when it has closed."""
        return await self._awaited(chain.wait)(timeout)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A transaction of the caller's own: it commits at the end of the block, or rolls back."""
        if isinstance(self.client, AsyncClient):
            async with await psycopg.AsyncConnection.connect(self._dsn) as connection:
                yield connection
        else:
            with psycopg.connect(self._dsn) as synchronous:
                yield synchronous

    @asynccontextmanager
    async def rolled_back(self) -> AsyncIterator[Any]:
        """A transaction of the caller's own that rolls back at the end of the block."""
        async with self.transaction() as connection:
            yield connection
            await self.execute(connection, "rollback")

    async def execute(self, connection: Any, statement: LiteralString) -> None:
        """Run a statement on a connection of the caller's own."""
        answer = connection.execute(statement)
        if isinstance(connection, psycopg.AsyncConnection):
            await answer

    async def close(self) -> None:
        """Close the client."""
        if isinstance(self.client, AsyncClient):
            await self.client.aclose()
        else:
            await asyncio.to_thread(self.client.close)

    def _awaited(self, method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        if isinstance(self.client, AsyncClient):
            return method

        async def call(*values: Any, **named: Any) -> Any:
            return await asyncio.to_thread(method, *values, **named)

        return call


class World:
    """A caller and workers on one database, each with a client of its own, as separate processes would have."""

    def __init__(self, dsn: str, *, mode: type[AsyncClient] | type[Client] = AsyncClient, notifications: str) -> None:
        """``notifications`` is what carries them: ``postgres``, ``in process`` or ``none``."""
        self.dsn = dsn
        self.notifications = notifications
        self.log = EventLog()
        self.state = PostgresState(dsn)
        carriers: dict[str, NotifyAdapter] = {"in process": InProcessNotify(), "none": NoNotifications()}
        self._shared = carriers.get(notifications)
        client = mode(self.state, JOB_TYPES, notify=self._shared, observability=self.log)
        self.caller = Caller(client, dsn)
        self.processors = self.group()
        self._workers: list[InProcessWorker] = []
        self._clients: list[AsyncClient] = []
        self._sql = psycopg.connect(dsn, autocommit=True)

    def group(self, **settings: Any) -> Processors:
        """Processors of the worlds' job types; failed attempts are tried again at once."""
        return Processors(JOB_TYPES, **{"retry": AT_ONCE, **settings})

    def handles(self, *job_types: JobType[Any, Any], by: Callable[[Attempt[Any, Any]], Any], **settings: Any) -> None:
        """Register a handler with the world's processors."""
        for job_type in job_types:
            self.processors.handles(job_type, **settings)(by)

    def worker(
        self, processors: Processors | None = None, *, state: StateAdapter | None = None, **settings: Any
    ) -> InProcessWorker:
        """A worker with a client of its own, not started; the world stops it at the end."""
        client = AsyncClient(state or self.state, JOB_TYPES, notify=self._shared, observability=self.log)
        settings.setdefault("poll_interval", QUICK if self.notifications == "none" else None)
        settings.setdefault("name", f"worker-{len(self._workers)}")
        worker = InProcessWorker(client, processors or self.processors, **settings)
        self._workers.append(worker)
        self._clients.append(client)
        return worker

    @property
    def worker_client(self) -> AsyncClient:
        """The client of the last worker."""
        return self._clients[-1]

    def rows(self, query: LiteralString, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        cursor = self._sql.execute(query, values or None)
        return cursor.fetchall() if cursor.description else []

    def count(self) -> int:
        """How many jobs there are."""
        return int(self.rows("select count(*) from queuert.job")[0][0])

    async def close(self) -> None:
        """Stop all workers, close all clients."""
        for worker in self._workers:
            await worker.stop(shutdown_timeout=0)
        for client in self._clients:
            await client.aclose()
        await self.caller.close()
        self._sql.close()


async def echo(attempt: Attempt[Any, Any]) -> Any:
    """A handler that returns its input."""
    return attempt.input


def failing_once(then: Callable[[Attempt[Any, Any]], Any]) -> Callable[[Attempt[Any, Any]], Awaitable[Any]]:
    """A handler whose first attempt of each job raises."""

    async def handler(attempt: Attempt[Any, Any]) -> Any:
        if attempt.number == 1:
            raise RuntimeError("the first attempt goes wrong")
        return then(attempt)

    return handler


PATIENT = RetryPolicy(initial_delay=600.0, max_delay=600.0, jitter=0.0)
"""A failed attempt is not tried again while the test lasts, unless it is triggered."""
