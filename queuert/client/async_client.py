"""The asynchronous client. ``sync_client.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, overload

from queuert.attributes import GivenAttributes
from queuert.client.arguments import shown
from queuert.client.async_base import AsyncClientBase
from queuert.client.async_chain import AsyncChain
from queuert.client.async_event_log import AsyncClientEventLog
from queuert.client.async_listing import AsyncClientListing
from queuert.client.async_management import AsyncClientManagement
from queuert.client.async_schedules import AsyncClientSchedules
from queuert.client.async_waiting import AsyncChainWatcher, wait_until_closed
from queuert.client.commits import tell_committed
from queuert.client.middleware import wrapped
from queuert.deduplication import Deduplicate
from queuert.errors import ChainNotFoundError, JobNotFoundError, JobTypeMismatchError, StateUnavailableError
from queuert.job_types import JobType
from queuert.jobs import ChainRecord, Job, JobStatus
from queuert.new_chain import (
    ChainReference,
    NewChain,
    can_pipeline,
    chain_ids,
    checked_chains,
    new_jobs,
    pipeline_batches,
)
from queuert.notify.adapter import PiggybackNotification, Topic, piggyback_notification
from queuert.observability.events import ChainStarted
from queuert.payloads import check_text
from queuert.run_at import RunAt
from queuert.state.types import NewJob, StartedJob

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")


class AsyncClient(
    AsyncClientManagement, AsyncClientListing, AsyncClientSchedules, AsyncClientEventLog, AsyncClientBase
):
    """Starts chains of jobs, awaits them and looks at them. It runs no handler.

    It connects when it is first used; close it, or use it as a context manager, to let go of its connections. One
    client serves a whole process; give it to an :class:`~queuert.InProcessWorker` as well.

    Args:
        state: where jobs live.
        job_types: the job types that it may start.
        notify: how it is woken when chains close; by default what suits ``state``. Without any, it polls.
        observability: who hears of events, one adapter or several; by default the standard log.
        middlewares: wrap every start, the first one outermost.
        connections: how many connections it opens at most.

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
        """Start one chain. When this returns, it is durable; with ``connection``, when the caller commits.

        Args:
            job_type: the type of its first job; what the chain ends with is inferred from it.
            input: that job's input.
            id: an id of your own choice: a second start with it is refused, so that a start can be repeated safely.
            run_at: when it may run first: ``after(minutes=5)`` or ``at(moment)``; by default at once.
            priority: higher is claimed sooner.
            blockers: chains that must close before it may run.
            deduplication: start it only if no other chain of its key is a duplicate of it; the handle says
                ``deduplicated`` otherwise, and is that of the other.
            attach: where a chain of this ``id`` exists, return its handle instead of refusing: a request that is
                repeated gets the running chain, or at once the result.
            limit_key: what the per-key limits of its job type count it under.
            result_ttl: seconds, or a timedelta, that the chain is kept after it closed, however it did; it is gone
                then, for ``get_chain`` and for starts. By default there is no end, or that of the ``retention`` of
                the handlers. Where another start is a duplicate of this one, that one's counts.
            attributes: what the chain can be found by, as in ``{"user": 17, "tags": ["a", "b"]}``: strings or numbers,
                or lists of them, each of which finds it. They are kept with the chain as text, and go with it.
            connection: a connection of yours: the chain is written in its transaction, and commits or rolls back with
                it. A psycopg connection or cursor, an SQLAlchemy connection or session, Django's ``connection``. One
                in autocommit commits at once, and so does a psycopg pool, which lends a connection.

        Raises:
            PayloadError: the input cannot be stored; the path and the reason are named.
            UnknownJobTypeError: the job type is not registered with this client.
            InvalidIdentifierError: the id, or an attribute, cannot be stored.
            JobIdConflictError: the id exists.
            ConfigurationError: the priority or the TTL is out of range, ``attach`` has no id, or the attributes are too
                many or of the wrong kind.
            JobTypeMismatchError: with ``attach``: the chain of this id is of another job type.
            ChainNotFoundError: a blocker does not exist.
            ClientMiddlewareError: a middleware handed on other chains than it was given.
            UnsupportedConnectionError: ``connection`` is nothing that the store can write on.
            StateUnavailableError: the store cannot be reached; whether the chain was written is unknown.
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
        """Start many chains, all or none; handles in the order given.

        Arguments and errors are those of :meth:`start_chain`. Some thousands at a time are best. Of many that nothing
        can stand in the way of, the first are sent to Postgres while the others are still being checked and encoded,
        in one transaction: if one of those is refused, it is rolled back.

        Example::

            chains = await client.start_chains([NewChain(resize, Resize(url=url, width=200)) for url in urls])
        """
        with wrapped(self._middlewares, checked_chains(chains)) as given:
            jobs = None if connection is None and can_pipeline(given) else new_jobs(self.job_types, given)
            store = await self._opened()
            # Of those that come in parts it is told afterwards, and of a caller's in his transaction.
            notification = None if jobs is None or connection is not None else self._notification(jobs)
            try:
                if jobs is None:
                    started = await store.start_parts(pipeline_batches(self.job_types, given))
                else:
                    started = await store.start_jobs(jobs, connection=connection, notification=notification)
            except BaseException as error:
                # They may stand all the same, and so they may where the call was cancelled. Workers should look then; a
                # notification too many does no harm.
                unknown = isinstance(error, StateUnavailableError) or not isinstance(error, Exception)
                if unknown and connection is None:
                    self.notify.publish(Topic.JOBS, {start.job_type.name for start in given})
                raise
            self._tell(started, notification, connection)
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

        With an ``id`` a request that is repeated gets the chain of the first one: while that is open it waits for it,
        and once it has closed it has the result, or the error, at once. When the ``result_ttl`` of the first is over,
        the next one starts anew.

        Args:
            timeout: seconds, of all of it; None waits for ever.

        The others are those of :meth:`start_chain`; it cannot be part of a transaction of yours, which would not have
        committed yet.

        Raises:
            WaitTimeoutError: the chain is still open after ``timeout`` seconds; it goes on, ``open_ids`` names it.
            JobFailedError: it failed; the error says why.
            ChainCancelledError: it was cancelled.
            ChainNotFoundError: it was deleted, or has expired, before its output was read.
            PayloadDecodeError: the stored output does not fit the model of this program's version.

        All that :meth:`start_chain` raises as well.

        Example::

            published = await client.start_and_wait(resize, Resize(url=url, width=200), id=url, result_ttl=3600)
        """
        watch = AsyncChainWatcher(await self._opened(), self.notify, self.observers, timeout)
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
            closed = await watch.wait_block_closed([chain.id])
        finally:
            watch.close()
        return await AsyncChain[R](self, chain.id, chain.type, closed[chain.id]).result()

    def _notification(self, jobs: Sequence[NewJob]) -> PiggybackNotification | None:
        """What the store may tell of these jobs itself."""
        return piggyback_notification(self.notify, Topic.JOBS, {job.type for job in jobs})

    def _tell(self, started: Sequence[StartedJob], notification: PiggybackNotification | None, connection: Any) -> None:
        inside = connection is not None
        if not inside and (notification is None or not notification.arrived):
            ready = {job.type for job in started if not job.existing and job.status is not JobStatus.BLOCKED}
            self.notify.publish(Topic.JOBS, ready)
        if self.observers.want(ChainStarted):
            new = [job for job in started if not job.existing]
            events = [ChainStarted(chain_id=job.id, type=job.type, in_callers_transaction=inside) for job in new]
            tell_committed(self.observers, events, connection)

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
        return shown(self.job_types, job)

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
