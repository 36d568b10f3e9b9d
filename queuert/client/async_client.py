"""The asynchronous client. ``sync_client.py`` is generated from this module."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from queuert.client.async_chain import AsyncChain
from queuert.client.async_waiting import wait_until_closed
from queuert.client.starts import ChainReference, NewChain, chain_ids, new_job, refuse_repeated_ids
from queuert.errors import ChainNotFoundError, ClosedError, JobNotFoundError, JobTypeMismatchError
from queuert.job_types import JobType, JobTypes
from queuert.jobs import ChainRecord, Job, JobStatus
from queuert.notify.adapter import NotifyAdapter, Topic
from queuert.observability.adapter import ObservabilityAdapter, observers
from queuert.observability.events import ChainStarted
from queuert.payloads import check_text
from queuert.schedules import Schedule
from queuert.state.adapter import NewJob, StartedJob, StateAdapter
from queuert.state.async_store import AsyncStore

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")


class AsyncClient:
    """Starts chains of jobs, awaits them and looks at them. It runs no handler.

    It connects when it is first used; close it, or use it as a context manager, to let go of its connections. One
    client serves a whole process; give it to an :class:`~queuert.InProcessWorker` as well.

    Args:
        state: where jobs live.
        job_types: the job types that it may start.
        notify: how it is woken when chains close; by default what suits ``state``. Without any, it polls.
        observability: who hears of events, one adapter or several; by default the standard log.
        connections: how many connections it opens at most.

    Example::

        async with AsyncClient(PostgresState(dsn), job_types) as client:
            chain = await client.start_chain(resize, Resize(url=url, width=200))
            published = await chain.result(timeout=30)
    """

    def __init__(
        self,
        state: StateAdapter,
        job_types: JobTypes,
        *,
        notify: NotifyAdapter | None = None,
        observability: ObservabilityAdapter | Iterable[ObservabilityAdapter] | None = None,
        connections: int = 4,
    ) -> None:
        self.state = state
        self.job_types = job_types
        self.notify = state.default_notify() if notify is None else notify
        self.observers = observers(observability)
        self._connections = connections
        self._store: AsyncStore | None = None
        self._process = 0
        self._closed = False
        self._finalizer: weakref.finalize[..., AsyncClient] | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect now rather than at the first use. Idempotent.

        Raises:
            StateUnavailableError: the store cannot be reached.
            SchemaMissingError: its schema is not there: run ``queuert migrate up``.
        """
        await self._opened()

    async def aclose(self) -> None:
        """Send what is pending and let go of all connections. Idempotent; the client cannot be used afterwards."""
        self._closed = True
        store, self._store = self._store, None
        if store is not None:
            await store.aclose()
        if self._finalizer is not None:
            self._finalizer()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _opened(self) -> AsyncStore:
        if self._closed:
            raise ClosedError("the client is closed: make a new one")
        if self._store is None or self._process != os.getpid():
            # A forked child must not share its parent's connections: it opens its own.
            store = self.state.async_store(connections=self._connections)
            await store.open()
            if self._store is None or self._process != os.getpid():
                self._store, self._process = store, os.getpid()
                self.notify.open(self.observers)
                # The last hints should go out even if nobody closes the client.
                self._finalizer = weakref.finalize(self, self.notify.close)
            else:
                await store.aclose()
        return self._store

    # --- start --------------------------------------------------------------------------------------------------------

    async def start_chain(
        self,
        job_type: JobType[I, R],
        input: I,
        *,
        id: str | None = None,
        schedule: Schedule | None = None,
        priority: int = 0,
        blockers: Iterable[ChainReference] = (),
        connection: Any = None,
    ) -> AsyncChain[R]:
        """Start one chain. When this returns, it is durable; with ``connection``, when the caller commits.

        Args:
            job_type: the type of its first job; what the chain ends with is inferred from it.
            input: that job's input.
            id: an id of your own choice: a second start with it is refused, so that a start can be repeated safely.
            schedule: when it may run first: ``after(minutes=5)`` or ``at(moment)``; by default at once.
            priority: higher is claimed sooner.
            blockers: chains that must close before it may run.
            connection: a psycopg connection (or cursor) of yours: the chain is written in its transaction, and commits
                or rolls back with it.

        Raises:
            PayloadError: the input cannot be stored; the path and the reason are named.
            UnknownJobTypeError: the job type is not registered with this client.
            InvalidIdentifierError: the id cannot be stored.
            JobIdConflictError: the id exists.
            ChainNotFoundError: a blocker does not exist.
            UnsupportedConnectionError: ``connection`` is nothing that the store can write on.
            StateUnavailableError: the store cannot be reached; whether the chain was written is unknown.
        """
        start = NewChain(job_type, input, id=id, schedule=schedule, priority=priority, blockers=blockers)
        return (await self.start_chains([start], connection=connection))[0]

    async def start_chains(self, chains: Iterable[NewChain[R]], *, connection: Any = None) -> list[AsyncChain[R]]:
        """Start many chains in one statement, all or none; handles in the order given.

        Arguments and errors are those of :meth:`start_chain`. Some thousands at a time are best; more go in several
        statements of one transaction.

        Example::

            chains = await client.start_chains([NewChain(resize, Resize(url=url, width=200)) for url in urls])
        """
        given = list(chains)
        jobs = [new_job(self.job_types, chain) for chain in given]
        refuse_repeated_ids(jobs)
        store = await self._opened()
        started = await store.start_jobs(jobs, connection=connection)
        self._tell(jobs, started, in_callers_transaction=connection is not None)
        return [AsyncChain(self, job.id, job.type) for job in jobs]

    def _tell(self, jobs: Sequence[NewJob], started: Sequence[StartedJob], *, in_callers_transaction: bool) -> None:
        if not in_callers_transaction:
            self.notify.publish(Topic.JOBS, {job.type for job in started if job.status is not JobStatus.BLOCKED})
        for job in jobs:
            self.observers.emit(
                ChainStarted(chain_id=job.id, type=job.type, in_callers_transaction=in_callers_transaction)
            )

    # --- look ---------------------------------------------------------------------------------------------------------

    @overload
    async def get_chain(self, chain_id: str, job_type: JobType[Any, R]) -> AsyncChain[R]: ...
    @overload
    async def get_chain(self, chain_id: str, job_type: None = None) -> AsyncChain[Any]: ...
    async def get_chain(self, chain_id: str, job_type: JobType[Any, Any] | None = None) -> AsyncChain[Any]:
        """Read a chain. With ``job_type`` its result is typed.

        Raises:
            ChainNotFoundError: it was never committed, or has been deleted.
            InvalidIdentifierError: no chain can have this id.
            JobTypeMismatchError: it is of another job type.
        """
        record = (await self._records([check_text(chain_id, what="chain id")]))[0]
        if job_type is not None and job_type.name != record.type:
            raise JobTypeMismatchError(chain_id, job_type.name, record.type)
        return AsyncChain(self, record.id, record.type, record)

    async def get_chains(self, chains: Iterable[ChainReference]) -> list[AsyncChain[Any]]:
        """Read many chains in one statement, in the order given.

        Raises:
            ChainNotFoundError: one of them does not exist.
        """
        return [AsyncChain(self, record.id, record.type, record) for record in await self._records(chain_ids(chains))]

    async def get_job(self, job_id: str) -> Job:
        """Read one job.

        Raises:
            JobNotFoundError: it was never committed, or has been deleted.
            InvalidIdentifierError: no job can have this id.
        """
        job = (await (await self._opened()).get_jobs([check_text(job_id, what="job id")]))[0]
        if job is None:
            raise JobNotFoundError(job_id)
        return job

    async def _records(self, ids: Sequence[str]) -> list[ChainRecord]:
        found = await (await self._opened()).get_chains(ids)
        records = [record for record in found if record is not None]
        if len(records) < len(found):
            raise ChainNotFoundError(ids[found.index(None)])
        return records

    # --- wait ---------------------------------------------------------------------------------------------------------

    async def wait(self, chains: Iterable[AsyncChain[R]], *, timeout: float | None = None) -> list[AsyncChain[R]]:
        """Wait until all these chains are closed, however they ended, and return them read anew, in the order given.

        It is woken by notification and looks for itself every few seconds besides. While the store is out of reach it
        goes on waiting.

        Args:
            chains: handles from this client; :meth:`get_chain` makes one of an id.
            timeout: seconds; None waits for ever.

        Raises:
            WaitTimeoutError: some were still open after ``timeout`` seconds; they go on.
            ChainNotFoundError: one was deleted, or its transaction rolled back.
        """
        given = list(chains)
        ids = list(dict.fromkeys(chain.id for chain in given))
        store = await self._opened()
        closed = await wait_until_closed(store, self.notify, self.observers, ids, timeout)
        return [AsyncChain(self, chain.id, chain.type, closed[chain.id]) for chain in given]
