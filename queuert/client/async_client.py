"""The asynchronous client. ``sync_client.py`` is generated from this module."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar, overload

from queuert.attributes import GivenAttributes
from queuert.client.arguments import decoded_job
from queuert.client.async_base import AsyncClientBase
from queuert.client.async_chain import AsyncChain
from queuert.client.async_event_log import AsyncClientEventLog
from queuert.client.async_explaining import AsyncClientExplaining
from queuert.client.async_listing import AsyncClientListing
from queuert.client.async_management import AsyncClientManagement
from queuert.client.async_schedules import AsyncClientSchedules
from queuert.client.async_waiting import AsyncChainWatcher
from queuert.client.commits import emit_committed
from queuert.client.middleware import apply_middlewares
from queuert.deduplication import Deduplicate
from queuert.errors import (
    ChainNotFoundError,
    ConfigurationError,
    JobNotFoundError,
    JobTypeMismatchError,
    StateUnavailableError,
)
from queuert.job_types import JobType
from queuert.jobs import ChainRecord, Job, JobStatus
from queuert.new_chain import (
    ChainReference,
    NewChain,
    can_pipeline,
    chain_ids,
    new_jobs,
    pipeline_batches,
)
from queuert.notify.adapter import Topic
from queuert.observability.events import ChainStarted, ChainsWritten
from queuert.observability.tracing import NO_SENDING, Send, Sending
from queuert.payloads import check_text
from queuert.run_at import RunAt
from queuert.state.types import StartedJob

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")


class AsyncClient(
    AsyncClientManagement,
    AsyncClientListing,
    AsyncClientExplaining,
    AsyncClientSchedules,
    AsyncClientEventLog,
    AsyncClientBase,
):
    """Starts, awaits, lists and manages chains of jobs. It runs no handlers.

    It connects when it is first used. Close it, or use it as a context manager, to close its connections. One client
    serves a whole process; pass it to an :class:`~queuert.InProcessWorker` as well.

    Args:
        state: the store of the jobs.
        job_types: the job types that it may start.
        notify: how it is woken when chains close; by default the adapter that suits ``state``. Without one, it polls.
        observability: the adapters that receive events, one or several; by default the standard log.
        middlewares: wrap every start, the first one outermost; a tracing middleware, such as
            :class:`~queuert.observability.otel_tracing.OTelMiddleware`, traces the attempts of its workers as well.
        max_connections: how many connections it opens at most.

    Example::

        async with AsyncClient(PostgresState(dsn), job_types) as client:
            chain = await client.start_chain(resize, Resize(url=url, width=200))
            published = await chain.result(timeout=30)
    """

    # --- start --------------------------------------------------------------------------------------------------------

    async def start_chain(
        self,
        job_type: JobType[I, R],
        input: I,
        *,
        id: str | None = None,
        run_at: RunAt | None = None,
        priority: int = 0,
        blockers: Iterable[ChainReference] = (),
        deduplication: Deduplicate | None = None,
        attach: bool = False,
        limit_key: str | None = None,
        result_ttl: float | timedelta | None = None,
        attributes: GivenAttributes | None = None,
        connection: Any = None,
    ) -> AsyncChain[R]:
        """Start one chain. It is durable when this returns; with ``connection``, when the caller commits.

        Args:
            job_type: the job type of the first job; the type of the chain's result is inferred from it.
            input: the input of the first job.
            id: an id of your own: a second start with it is refused, so a start can be repeated safely.
            run_at: when the job may first run: ``after(minutes=5)`` or ``at(moment)``; by default at once.
            priority: higher priorities are claimed sooner; between -1,000,000 and 1,000,000.
            blockers: chains that must close before the job may run.
            deduplication: if another chain of the same key matches, return its handle, with ``deduplicated`` set.
            attach: if a chain of this ``id`` exists, return its handle instead of raising: for repeated requests.
            limit_key: the key under which the per-key limits of the job type count the job.
            result_ttl: seconds or a timedelta that the chain is kept after it closed, in whatever status; by default
                without end, or by the ``retention`` of its handler. A chain that existed keeps its own.
            attributes: names and values by which ``list_chains`` finds the chain, as in
                ``{"user": 17, "tags": ["a", "b"]}``: strings, numbers, or lists of them. They are stored as text.
            connection: a connection of yours, in whose transaction the chain is written: one of psycopg, asyncpg or
                psycopg2 or its cursor, an SQLAlchemy connection or session, or Django's ``connection``. In autocommit,
                and with a pool of a driver, from which the client borrows a connection, it is committed at once.

        Raises:
            PayloadError: the input cannot be stored; the error has path and reason.
            DefinitionError: ``job_type`` is not a JobType.
            UnknownJobTypeError: the job type is not registered with this client.
            DuplicateJobTypeError: another job type is registered under its name.
            InvalidIdentifierError: the id or an attribute cannot be stored.
            JobIdConflictError: a job with this id exists.
            ConfigurationError: an argument is out of range or of the wrong type, or ``attach`` is set without an id.
            JobTypeMismatchError: with ``attach``: the existing chain is of another job type.
            ChainNotFoundError: a blocker does not exist.
            ClientMiddlewareError: a middleware did not yield the chains that it received.
            UnsupportedConnectionError: the store cannot write on ``connection``, or it is one to another database.
            StateUnavailableError: the store cannot be reached; it is unknown whether the chain was written.
        """
        start = NewChain(
            job_type,
            input,
            id=id,
            run_at=run_at,
            priority=priority,
            blockers=blockers,
            deduplication=deduplication,
            attach=attach,
            limit_key=limit_key,
            result_ttl=result_ttl,
            attributes=attributes,
        )
        return (await self.start_chains([start], connection=connection))[0]

    async def start_chains(self, chains: Iterable[NewChain[R]], *, connection: Any = None) -> list[AsyncChain[R]]:
        """Start many chains, all or none, and return their handles in the same order.

        Arguments and errors are those of :meth:`start_chain`. Some thousands at a time are best. If there are many and
        they cannot conflict (no ids, blockers or deduplication), the first are sent to Postgres while the others are
        still being checked and encoded, in one transaction, which is rolled back if one of them is refused.

        Example::

            chains = await client.start_chains([NewChain(resize, Resize(url=url, width=200)) for url in urls])
        """
        new_chains = list(chains)
        for chain in new_chains:
            if not isinstance(chain, NewChain):
                raise ConfigurationError(
                    f"start_chains takes NewChain(job_type, input) objects, got {type(chain).__name__}"
                )
        middlewares = apply_middlewares(self._middlewares, new_chains) if self._middlewares else nullcontext(new_chains)
        with middlewares as starts, self._sending(starts, connection) as sending:
            trace = None if sending is None else sending.context
            jobs = None if connection is None and can_pipeline(starts) else new_jobs(self.job_types, starts, trace)
            store = await self._open_store()
            sent_at = time.monotonic()
            try:
                if jobs is None:
                    started = await store.start_pipelined(pipeline_batches(self.job_types, starts, trace))
                else:
                    started = await store.start_jobs(jobs, connection=connection)
            except BaseException as error:
                # The chains may have been committed nevertheless, also if the call was cancelled. Wake the workers: a
                # superfluous notification does no harm.
                unknown = isinstance(error, StateUnavailableError) or not isinstance(error, Exception)
                if unknown and connection is None:
                    self.notify.publish(Topic.JOBS, {start.job_type.name for start in starts})
                raise
            if self.observers.want(ChainsWritten):
                self.observers.emit(ChainsWritten(count=len(started), duration=time.monotonic() - sent_at))
            if sending is not None:
                sending.started(started)
            self._report_started(started, connection)
        return [
            AsyncChain(self, job.id, job.type, deduplicated=job.existing, status=job.chain_status) for job in started
        ]

    async def start_and_wait(
        self,
        job_type: JobType[I, R],
        input: I,
        *,
        id: str | None = None,
        timeout: float | None = 30.0,
        result_ttl: float | timedelta | None = None,
        run_at: RunAt | None = None,
        priority: int = 0,
        blockers: Iterable[ChainReference] = (),
        deduplication: Deduplicate | None = None,
        limit_key: str | None = None,
        attributes: GivenAttributes | None = None,
    ) -> R:
        """Start one chain, wait for it, and return its output: a request and its response.

        With an ``id``, a repeated request gets the chain of the first one: it waits while that is open, and returns the
        result or raises the error at once when it is closed. After the ``result_ttl`` of the first chain, the next
        request starts a new one.

        The other arguments are those of :meth:`start_chain`. There is no ``connection``, as a chain cannot run before
        your transaction has committed.

        Args:
            timeout: seconds for start and wait together; None waits for ever.

        Raises:
            WaitTimeoutError: the chain is still open after ``timeout`` seconds; it keeps running, and ``open_ids``
                names it.
            JobFailedError: it failed; the error says why.
            ChainCancelledError: it was cancelled.
            ChainNotFoundError: it was deleted, or expired, before its output was read.
            PayloadDecodeError: the stored output is not valid for the model in this program.

        It also raises the errors of :meth:`start_chain`.

        Example::

            published = await client.start_and_wait(resize, Resize(url=url, width=200), id=url, result_ttl=3600)
        """
        watcher = AsyncChainWatcher(await self._open_store(), self.notify, self.observers, timeout)
        try:
            chain = await self.start_chain(
                job_type,
                input,
                id=id,
                run_at=run_at,
                priority=priority,
                blockers=blockers,
                deduplication=deduplication,
                attach=id is not None,
                limit_key=limit_key,
                result_ttl=result_ttl,
                attributes=attributes,
            )
            closed = await watcher.wait([chain.id])
        finally:
            watcher.close()
        return await AsyncChain[R](self, chain.id, chain.type, closed[chain.id]).result()

    def _sending(self, chains: Sequence[NewChain[Any]], connection: Any) -> AbstractContextManager[Sending | None]:
        """Trace a start, if the client has a tracing middleware."""
        if self.tracing is None or not chains:
            return NO_SENDING
        types = tuple(dict.fromkeys(chain.job_type.name for chain in chains))
        return self.tracing.sending(Send(types, len(chains), in_callers_transaction=connection is not None))

    def _report_started(self, started: Sequence[StartedJob], connection: Any) -> None:
        in_callers_transaction = connection is not None
        if not in_callers_transaction:
            ready = {job.type for job in started if not job.existing and job.status is not JobStatus.BLOCKED}
            self.notify.publish(Topic.JOBS, ready)
        if self.observers.want(ChainStarted):
            events = [
                ChainStarted(chain_id=job.id, type=job.type, in_callers_transaction=in_callers_transaction)
                for job in started
                if not job.existing
            ]
            emit_committed(self.observers, events, connection)

    # --- read ---------------------------------------------------------------------------------------------------------

    @overload
    async def get_chain(self, chain_id: str, job_type: JobType[Any, R]) -> AsyncChain[R]: ...
    @overload
    async def get_chain(self, chain_id: str, job_type: None = None) -> AsyncChain[Any]: ...
    async def get_chain(self, chain_id: str, job_type: JobType[Any, Any] | None = None) -> AsyncChain[Any]:
        """Read a chain. With ``job_type`` its result is typed.

        Raises:
            ChainNotFoundError: it was never committed, or it was deleted.
            InvalidIdentifierError: the id is not valid.
            JobTypeMismatchError: it is of another job type.
        """
        record = (await self._records([check_text(chain_id, what="chain id")]))[0]
        if job_type is not None and job_type.name != record.type:
            raise JobTypeMismatchError(chain_id, job_type.name, record.type)
        return AsyncChain(self, record.id, record.type, record)

    async def get_chains(self, chains: Iterable[ChainReference]) -> list[AsyncChain[Any]]:
        """Read many chains in one statement, each once, in the given order.

        Raises:
            ChainNotFoundError: one of them does not exist.
        """
        return [AsyncChain(self, record.id, record.type, record) for record in await self._records(chain_ids(chains))]

    async def get_job(self, job_id: str) -> Job:
        """Read one job.

        Raises:
            JobNotFoundError: it was never committed, or it was deleted.
            InvalidIdentifierError: the id is not valid.
        """
        job = (await (await self._open_store()).get_jobs([check_text(job_id, what="job id")]))[0]
        if job is None:
            raise JobNotFoundError(job_id)
        return decoded_job(self.job_types, job)

    async def _records(self, ids: Sequence[str]) -> list[ChainRecord]:
        rows = await (await self._open_store()).get_chains(ids)
        records = [record for record in rows if record is not None]
        if len(records) < len(rows):
            raise ChainNotFoundError(ids[rows.index(None)])
        return records

    # --- wait ---------------------------------------------------------------------------------------------------------

    async def wait(self, chains: Iterable[AsyncChain[R]], *, timeout: float | None = None) -> list[AsyncChain[R]]:
        """Wait until all these chains are closed, in whatever status, and return new handles, in the same order.

        Notifications wake it, and it polls every few seconds as well. While the store cannot be reached, it keeps
        waiting.

        Args:
            chains: handles of this client; :meth:`get_chain` returns one for an id.
            timeout: seconds; None waits for ever.

        Raises:
            WaitTimeoutError: some are still open after ``timeout`` seconds; they keep running.
            ChainNotFoundError: one was deleted, or its transaction was rolled back.
        """
        handles = list(chains)
        watcher = AsyncChainWatcher(await self._open_store(), self.notify, self.observers, timeout)
        try:
            closed = await watcher.wait([chain.id for chain in handles])
        finally:
            watcher.close()
        return [AsyncChain(self, chain.id, chain.type, closed[chain.id]) for chain in handles]
