# Generated from queuert/client/async_client.py, do not edit: see scripts/unasync.py
"""The synchronous client. ``sync_client.py`` is generated from this module."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from queuert.client.starts import ChainReference, NewChain, chain_ids, new_job, refuse_repeated_ids
from queuert.client.sync_chain import Chain
from queuert.client.sync_waiting import wait_until_closed
from queuert.errors import ChainNotFoundError, ClosedError, JobNotFoundError, JobTypeMismatchError
from queuert.job_types import JobType, JobTypes
from queuert.jobs import ChainRecord, Job, JobStatus
from queuert.notify.adapter import NotifyAdapter, Topic
from queuert.observability.adapter import ObservabilityAdapter, observers
from queuert.observability.events import ChainStarted
from queuert.payloads import check_text
from queuert.schedules import Schedule
from queuert.state.adapter import NewJob, StartedJob, StateAdapter
from queuert.state.sync_store import Store

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")


class Client:
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

        with Client(PostgresState(dsn), job_types) as client:
            chain = client.start_chain(resize, Resize(url=url, width=200))
            published = chain.result(timeout=30)
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
        self._store: Store | None = None
        self._process = 0
        self._closed = False
        self._finalizer: weakref.finalize[..., Client] | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect now rather than at the first use. Idempotent.

        Raises:
            StateUnavailableError: the store cannot be reached.
            SchemaMissingError: its schema is not there: run ``queuert migrate up``.
        """
        self._opened()

    def close(self) -> None:
        """Send what is pending and let go of all connections. Idempotent; the client cannot be used afterwards."""
        self._closed = True
        store, self._store = self._store, None
        if store is not None:
            store.close()
        if self._finalizer is not None:
            self._finalizer()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self) -> Store:
        if self._closed:
            raise ClosedError("the client is closed: make a new one")
        if self._store is None or self._process != os.getpid():
            # A forked child must not share its parent's connections: it opens its own.
            store = self.state.sync_store(connections=self._connections)
            store.open()
            if self._store is None or self._process != os.getpid():
                self._store, self._process = store, os.getpid()
                self.notify.open(self.observers)
                # The last hints should go out even if nobody closes the client.
                self._finalizer = weakref.finalize(self, self.notify.close)
            else:
                store.close()
        return self._store

    # --- start --------------------------------------------------------------------------------------------------------

    def start_chain(
        self,
        job_type: JobType[I, R],
        input: I,
        *,
        id: str | None = None,
        schedule: Schedule | None = None,
        priority: int = 0,
        blockers: Iterable[ChainReference] = (),
        connection: Any = None,
    ) -> Chain[R]:
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
        return (self.start_chains([start], connection=connection))[0]

    def start_chains(self, chains: Iterable[NewChain[R]], *, connection: Any = None) -> list[Chain[R]]:
        """Start many chains in one statement, all or none; handles in the order given.

        Arguments and errors are those of :meth:`start_chain`. Some thousands at a time are best; more go in several
        statements of one transaction.

        Example::

            chains = client.start_chains([NewChain(resize, Resize(url=url, width=200)) for url in urls])
        """
        given = list(chains)
        jobs = [new_job(self.job_types, chain) for chain in given]
        refuse_repeated_ids(jobs)
        store = self._opened()
        started = store.start_jobs(jobs, connection=connection)
        self._tell(jobs, started, in_callers_transaction=connection is not None)
        return [Chain(self, job.id, job.type) for job in jobs]

    def _tell(self, jobs: Sequence[NewJob], started: Sequence[StartedJob], *, in_callers_transaction: bool) -> None:
        if not in_callers_transaction:
            self.notify.publish(Topic.JOBS, {job.type for job in started if job.status is not JobStatus.BLOCKED})
        for job in jobs:
            self.observers.emit(
                ChainStarted(chain_id=job.id, type=job.type, in_callers_transaction=in_callers_transaction)
            )

    # --- look ---------------------------------------------------------------------------------------------------------

    @overload
    def get_chain(self, chain_id: str, job_type: JobType[Any, R]) -> Chain[R]: ...
    @overload
    def get_chain(self, chain_id: str, job_type: None = None) -> Chain[Any]: ...
    def get_chain(self, chain_id: str, job_type: JobType[Any, Any] | None = None) -> Chain[Any]:
        """Read a chain. With ``job_type`` its result is typed.

        Raises:
            ChainNotFoundError: it was never committed, or has been deleted.
            InvalidIdentifierError: no chain can have this id.
            JobTypeMismatchError: it is of another job type.
        """
        record = (self._records([check_text(chain_id, what="chain id")]))[0]
        if job_type is not None and job_type.name != record.type:
            raise JobTypeMismatchError(chain_id, job_type.name, record.type)
        return Chain(self, record.id, record.type, record)

    def get_chains(self, chains: Iterable[ChainReference]) -> list[Chain[Any]]:
        """Read many chains in one statement, in the order given.

        Raises:
            ChainNotFoundError: one of them does not exist.
        """
        return [Chain(self, record.id, record.type, record) for record in self._records(chain_ids(chains))]

    def get_job(self, job_id: str) -> Job:
        """Read one job.

        Raises:
            JobNotFoundError: it was never committed, or has been deleted.
            InvalidIdentifierError: no job can have this id.
        """
        job = ((self._opened()).get_jobs([check_text(job_id, what="job id")]))[0]
        if job is None:
            raise JobNotFoundError(job_id)
        return job

    def _records(self, ids: Sequence[str]) -> list[ChainRecord]:
        found = (self._opened()).get_chains(ids)
        records = [record for record in found if record is not None]
        if len(records) < len(found):
            raise ChainNotFoundError(ids[found.index(None)])
        return records

    # --- wait ---------------------------------------------------------------------------------------------------------

    def wait(self, chains: Iterable[Chain[R]], *, timeout: float | None = None) -> list[Chain[R]]:
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
        store = self._opened()
        closed = wait_until_closed(store, self.notify, self.observers, ids, timeout)
        return [Chain(self, chain.id, chain.type, closed[chain.id]) for chain in given]
