"""The asynchronous client. ``sync_client.py`` is generated from this module."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar, Unpack, overload

from queuert.client.arguments import decoded_job, decoded_state
from queuert.client.async_base import AsyncClientBase
from queuert.client.async_bulk_operations import AsyncClientBulkOperations
from queuert.client.async_chain import AsyncChain
from queuert.client.async_event_log import AsyncClientEventLog
from queuert.client.async_explaining import AsyncClientExplaining
from queuert.client.async_listing import AsyncClientListing
from queuert.client.async_management import AsyncClientManagement
from queuert.client.async_schedules import AsyncClientSchedules
from queuert.client.async_waiting import AsyncChainWatcher
from queuert.client.async_webhooks import AsyncClientWebhooks
from queuert.client.commits import emit_committed
from queuert.client.connections import AsyncConnectionLike
from queuert.client.middleware import apply_middlewares
from queuert.client.schedules import JobTypeReference, schedule_names, superseded, tick_job, type_names
from queuert.deduplication import Deduplicate, DeduplicationScope
from queuert.errors import (
    ChainNotFoundError,
    ConfigurationError,
    InvalidIdentifierError,
    JobNotFoundError,
    JobTypeMismatchError,
    NotInStatusError,
    ScheduleNotFoundError,
    StateUnavailableError,
)
from queuert.job_types import JobType, not_a_job_type
from queuert.jobs import ChainRecord, ChainState, Job, JobStatus
from queuert.new_chain import (
    FIRST_PART,
    LONG_PART,
    MANY,
    ChainOptions,
    ChainReference,
    NewChain,
    RequestOptions,
    async_listed,
    chain_ids,
    check_options,
    listed,
    may_conflict,
    new_jobs,
    parts,
    shows_options,
)
from queuert.notify.adapter import Topic
from queuert.observability.events import ChainStarted, ChainsWritten
from queuert.observability.tracing import NO_SENDING, Send, Sending
from queuert.policies import checked_ttl
from queuert.schedules import Overlap, checked_moment, checked_range, ticks_between
from queuert.state.types import NewJob, ScheduleRecord, StartedJob
from queuert.texts import check_text

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

_ROUNDS = 5
"""How often a start from a schedule is repeated because the schedule has changed meanwhile."""


class AsyncClient(
    AsyncClientManagement,
    AsyncClientBulkOperations,
    AsyncClientListing,
    AsyncClientExplaining,
    AsyncClientSchedules,
    AsyncClientEventLog,
    AsyncClientWebhooks,
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
        webhook_format: how the secrets of webhooks are stored, for example encrypted; by default as plain JSON.
        callbacks: makes the addresses of :meth:`callback_url`.

    Example::

        async with AsyncClient(PostgresState(dsn), job_types) as client:
            chain = await client.start_chain(resize, Resize(url=url, width=200))
            published = await chain.result(timeout=30)
    """

    # --- start --------------------------------------------------------------------------------------------------------

    @shows_options(ChainOptions)
    async def start_chain(
        self,
        job_type: JobType[I, R],
        input: I,
        *,
        connection: AsyncConnectionLike | None = None,
        **options: Unpack[ChainOptions],
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
                without end, or by the ``retention`` of its handler. A chain that existed keeps its own. With 0 it
                counts as deleted as soon as it has closed: nobody can read its result but the jobs that wait for it.
            attributes: names and values by which ``list_chains`` finds the chain, as in
                ``{"user": 17, "tags": ["a", "b"]}``: strings, numbers, or lists of them. They are stored as text.
            max_attempts: how many attempts of the first job may fail, instead of the ``max_attempts`` of its retry
                policy; the other jobs of the chain keep theirs.
            webhook: an address that is told when the chain has closed, of at most 512 characters. It is stored as the
                attribute ``queuert.webhook``. See :data:`~queuert.webhooks.CHAIN_WEBHOOKS` for its secret.
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
            ConfigurationError: an argument is out of range or of the wrong type, ``attach`` is set without an id, or
                the ``webhook`` is not a valid address.
            JobTypeMismatchError: with ``attach``: the existing chain is of another job type.
            ChainNotFoundError: a blocker does not exist.
            ClientMiddlewareError: a middleware did not yield the chains that it received.
            UnsupportedConnectionError: the store cannot write on ``connection``, or it is one to another database.
            StateUnavailableError: the store cannot be reached; it is unknown whether the chain was written.
        """
        try:
            start = NewChain(job_type, input, **options)
        except TypeError:
            check_options("start_chain", ChainOptions, options)
            raise
        return (await self.start_chains([start], connection=connection))[0]

    async def start_chains(
        self, chains: Iterable[NewChain[R]], *, connection: AsyncConnectionLike | None = None
    ) -> list[AsyncChain[R]]:
        """Start many chains, all or none, and return their handles in the same order.

        Arguments and errors are those of :meth:`start_chain`. Some thousands at a time are best. If there are many and
        they cannot conflict (no ids, blockers or deduplication), the first are sent to Postgres while the others are
        still being checked and encoded, in one transaction, which is rolled back if one of them is refused.

        Example::

            chains = await client.start_chains([NewChain(resize, Resize(url=url, width=200)) for url in urls])
        """
        # A list of our own: others may change the caller's while they have a turn.
        new_chains = (
            chains[:]
            if type(chains) is list
            else listed(chains, "start_chains takes a sequence of NewChain(job_type, input) objects")
        )
        for chain in new_chains:
            if not isinstance(chain, NewChain):
                raise ConfigurationError(
                    f"start_chains takes NewChain(job_type, input) objects, got {type(chain).__name__}"
                )
        middlewares = apply_middlewares(self._middlewares, new_chains) if self._middlewares else nullcontext(new_chains)
        with middlewares as starts, self._sending(starts, connection) as sending:
            trace = None if sending is None else sending.context
            made = new_jobs(self.job_types, starts, trace)
            jobs, in_parts = list[NewJob](), False
            if connection is None and len(starts) >= MANY and not may_conflict(starts):
                began = time.monotonic()
                jobs = await async_listed(itertools.islice(made, FIRST_PART))
                # If the models are slow, all are encoded before the transaction begins.
                in_parts = time.monotonic() - began < LONG_PART
            if not in_parts:
                jobs += await async_listed(made)
            store = await self._open_store()
            sent_at = time.monotonic()
            notified = False
            try:
                if in_parts:
                    started = await store.start_pipelined(_parts(jobs, made))
                else:
                    # Of stores and adapters that belong together: see AsyncNotifyingStore and PiggybackAdapter.
                    start = getattr(store, "start_and_notify", None) if hasattr(self.notify, "piggyback") else None
                    if connection is None and start is not None:
                        started, notified = await start(jobs, self.notify)
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
            self._report_started(started, connection, notified=notified)
        return [AsyncChain(self, job, None if job.existing else new) for job, new in zip(started, jobs, strict=True)]

    @shows_options(RequestOptions)
    async def start_and_wait(
        self,
        job_type: JobType[I, R],
        input: I,
        *,
        timeout: float | None = 30.0,
        **options: Unpack[RequestOptions],
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
        result_ttl = options.get("result_ttl")
        if result_ttl is not None and checked_ttl("result_ttl", result_ttl, zero=True) == 0:
            raise ConfigurationError("start_and_wait needs the result: pass a result_ttl above 0, or none")
        try:
            start = NewChain(job_type, input, **options, attach=options.get("id") is not None)
        except TypeError:
            check_options("start_and_wait", RequestOptions, options)
            raise
        watcher = AsyncChainWatcher(await self._open_store(), self.job_types, self.notify, self.observers, timeout)
        try:
            [chain] = await self.start_chains([start])
            closed = await watcher.wait([chain.id])
        finally:
            watcher.close()
        return await AsyncChain[R](self, closed[chain.id]).result()

    # --- chains of schedules ------------------------------------------------------------------------------------------

    async def run_schedule(self, name: str, *, at: datetime | None = None) -> AsyncChain[Any] | None:
        """Start a chain of a schedule now, paused or not, beside those of its ticks, which stay as they are.

        If the chain that the schedule started last is open, its ``overlap`` decides: with ``"skip"`` no chain is
        started and this returns None; with ``"cancel"`` that chain is cancelled first.

        Args:
            name: the name of the schedule.
            at: the time that the handler sees as the tick, an aware datetime; by default now. It must be none of the
                schedule's own ticks, whose chains :meth:`backfill_schedule` starts. The chain's id is
                ``<name>@<at in UTC>``, so a call that is repeated with the same ``at`` starts and cancels nothing, and
                returns that chain with ``deduplicated`` set.

        Raises:
            ScheduleNotFoundError: no schedule has this name.
            InvalidIdentifierError: the name is not valid.
            ConfigurationError: ``at`` has no time zone, or is a tick of the schedule.
            NotInStatusError: other chains of the schedule were started during the call, again and again. Repeat it.
            StateUnavailableError: the store cannot be reached; it is unknown whether the chain was started.
        """
        if at is not None:
            at = checked_moment("at", at)
        for _ in range(_ROUNDS):
            schedule, now = await self._schedule(name)
            if at is not None and schedule.spec.has(at):
                # The chain would be that of the tick, which would get no other.
                raise ConfigurationError(
                    f"at must be no tick of the schedule {schedule.name!r}, got {at.isoformat()}: call "
                    "backfill_schedule, which starts the chains of ticks, or give another moment"
                )
            job = tick_job(schedule, at or schedule.spec.beside(now), at_once=True)
            if at is not None:
                # Before another chain is cancelled for one that was started already.
                with suppress(ChainNotFoundError):
                    found = await self.get_chain(job.id)
                    if found.type == schedule.type:
                        found.deduplicated = True
                        return found
            if schedule.overlap is Overlap.CANCEL and schedule.last_chain_id not in (None, job.id):
                with suppress(ChainNotFoundError):
                    await self.cancel_chain(schedule.last_chain_id, reason=superseded(schedule))
            started = await self._run_schedule(schedule, [job], overlap=False)
            if started is not None:
                return started[0] if started else None
        raise NotInStatusError(f"schedule {name!r} starts other chains at the same time: repeat the call")

    async def backfill_schedule(self, name: str, *, since: datetime, before: datetime) -> list[AsyncChain[Any]]:
        """Start the chains of a schedule's ticks within a range of the past, all or none, and return their handles.

        A tick that has a chain gets no second one: its handle has ``deduplicated`` set. The chains are started whatever
        the schedule's ``overlap`` says, paused or not, and are due at once. Ticks that its times do not have, such as
        those before ``starts_at``, are left out.

        Args:
            name: the name of the schedule.
            since: the beginning of the range, an aware datetime.
            before: its end, an aware datetime: ticks at this moment are not in the range.

        Raises:
            ScheduleNotFoundError: no schedule has this name.
            ConfigurationError: a datetime has no time zone, ``before`` is before ``since`` or in the future, or there
                are more than 1,000 ticks.
            InvalidIdentifierError: the name is not valid.
            StateUnavailableError: the store cannot be reached; it is unknown whether the chains were started. Repeat
                it.
        """
        since, before = checked_range(since, before)
        for _ in range(_ROUNDS):
            schedule, now = await self._schedule(name)
            if before > now:
                raise ConfigurationError(f"before must not be in the future (it is {now}), got {before}")
            jobs = [tick_job(schedule, tick, at_once=True) for tick in ticks_between(schedule.spec, since, before)]
            started = await self._run_schedule(schedule, jobs, overlap=True) if jobs else []
            if started is not None:
                return started
        raise NotInStatusError(f"schedule {name!r} was changed again and again during the call: repeat the call")

    async def _schedule(self, name: str) -> tuple[ScheduleRecord, datetime]:
        """Return a schedule, and the time by the store's clock."""
        store, [checked] = await self._open_store(), schedule_names([name])
        existing = await store.list_schedules()
        for schedule in existing:
            if schedule.name == checked:
                return schedule, (await store.due_schedules([])).now
        names = ", ".join(schedule.name for schedule in existing[:10])
        raise ScheduleNotFoundError(checked, f"schedule {checked!r} does not exist; those that do: {names or 'none'}")

    async def _run_schedule(
        self, schedule: ScheduleRecord, jobs: Sequence[NewJob], *, overlap: bool
    ) -> list[AsyncChain[Any]] | None:
        store = await self._open_store()
        send = Send((schedule.type,), len(jobs), schedule=schedule)
        with NO_SENDING if self.tracing is None else self.tracing.sending(send) as sending:
            if sending is not None:
                jobs = [replace(job, trace_context=sending.context(job.type, job.id)) for job in jobs]
            started = await store.run_schedule(schedule.name, jobs, overlap=overlap)
            if sending is not None:
                sending.started(started) if started else sending.counted(0)
        self._report_started(started or (), None, notified=False)
        if started is None:
            return None
        # With the overlap "skip" none may have been started.
        written = zip(started, jobs, strict=True) if started else ()
        return [AsyncChain(self, job, None if job.existing else new) for job, new in written]

    def _sending(self, chains: Sequence[NewChain[Any]], connection: Any) -> AbstractContextManager[Sending | None]:
        """Trace a start, if the client has a tracing middleware."""
        if self.tracing is None or not chains:
            return NO_SENDING
        types: tuple[str, ...] = (chains[0].job_type.name,)
        if len(chains) > 1:
            types = tuple(dict.fromkeys(chain.job_type.name for chain in chains))
        return self.tracing.sending(Send(types, len(chains), in_callers_transaction=connection is not None))

    def _report_started(self, started: Sequence[StartedJob], connection: Any, *, notified: bool) -> None:
        in_callers_transaction = connection is not None
        if not in_callers_transaction and not notified:
            ready = {
                job.type
                for job in started
                if job.status is not JobStatus.BLOCKED and (job.debounced or not job.existing)
            }
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
    async def get_chain(
        self, chain_id: str, job_type: JobType[Any, R], *, connection: AsyncConnectionLike | None = None
    ) -> AsyncChain[R]: ...
    @overload
    async def get_chain(
        self, chain_id: str, job_type: None = None, *, connection: AsyncConnectionLike | None = None
    ) -> AsyncChain[Any]: ...
    async def get_chain(
        self, chain_id: str, job_type: JobType[Any, Any] | None = None, *, connection: AsyncConnectionLike | None = None
    ) -> AsyncChain[Any]:
        """Read a chain. With ``job_type`` its result is typed.

        With ``connection``, one of those that :meth:`start_chain` takes, it is read in your transaction, which sees the
        chains that it has started and not committed yet. So do all other reads that take it.

        Raises:
            ChainNotFoundError: it was never committed, or it was deleted.
            DefinitionError: ``job_type`` is not a JobType, such as a name.
            InvalidIdentifierError: the id is not valid.
            JobTypeMismatchError: it is of another job type.
            UnsupportedConnectionError: the store cannot read on ``connection``, or it is one to another database.
        """
        if job_type is not None and not isinstance(job_type, JobType):
            raise not_a_job_type(job_type)
        record = (await self._records([check_text(chain_id, what="chain id")], connection))[0]
        if job_type is not None and job_type.name != record.type:
            raise JobTypeMismatchError(chain_id, job_type.name, record.type)
        return AsyncChain(self, record)

    async def get_chains(
        self, chains: Iterable[ChainReference], *, connection: AsyncConnectionLike | None = None
    ) -> list[AsyncChain[Any]]:
        """Read many chains in one statement, each once, in the given order.

        Raises:
            ChainNotFoundError: one of them does not exist.
        """
        return [AsyncChain(self, record) for record in await self._records(chain_ids(chains), connection)]

    @overload
    async def find_chain(
        self,
        job_type: JobType[Any, R],
        key: str,
        *,
        scope: DeduplicationScope | str = DeduplicationScope.OPEN,
        connection: AsyncConnectionLike | None = None,
    ) -> AsyncChain[R] | None: ...
    @overload
    async def find_chain(
        self,
        job_type: str,
        key: str,
        *,
        scope: DeduplicationScope | str = DeduplicationScope.OPEN,
        connection: AsyncConnectionLike | None = None,
    ) -> AsyncChain[Any] | None: ...
    async def find_chain(
        self,
        job_type: JobTypeReference,
        key: str,
        *,
        scope: DeduplicationScope | str = DeduplicationScope.OPEN,
        connection: AsyncConnectionLike | None = None,
    ) -> AsyncChain[Any] | None:
        """Read the newest chain that was started with a deduplication key; None if there is none.

        Args:
            job_type: the job type of the chain's first job, or its name; its result is typed by it.
            key: the key of its ``Deduplicate``.
            scope: ``"open"`` finds open chains, ``"any"`` all that are stored, as for a start.
            connection: a connection of yours, see :meth:`get_chain`.

        Raises:
            ConfigurationError: the scope is unknown.
            InvalidIdentifierError: the key or the name of the job type is not valid.

        Example::

            chain = await client.find_chain(report, "report-7", scope="any")
        """
        wanted = Deduplicate(key, scope=scope)
        [name] = type_names([job_type])
        store = await self._open_store()
        only_open = wanted.scope is DeduplicationScope.OPEN
        ids = await store.chains_of_key(name, key, only_open=only_open, limit=1, connection=connection)
        [record] = await store.get_chains(ids, connection=connection) if ids else [None]
        # It may have been deleted since its id was read.
        return None if record is None else AsyncChain(self, record)

    async def get_job(self, job_id: str, *, connection: AsyncConnectionLike | None = None) -> Job:
        """Read one job.

        Raises:
            JobNotFoundError: it was never committed, or it was deleted.
            InvalidIdentifierError: the id is not valid.
        """
        return (await self.get_jobs([job_id], connection=connection))[0]

    async def get_jobs(self, job_ids: Iterable[str], *, connection: AsyncConnectionLike | None = None) -> list[Job]:
        """Read many jobs in one statement, each once, in the given order.

        Raises:
            JobNotFoundError: one of them does not exist.
            InvalidIdentifierError: an id is not valid, or ``job_ids`` is a string.
        """
        if isinstance(job_ids, str):
            raise InvalidIdentifierError("job_ids must be a sequence of ids, got a string; write [id]")
        ids = list(dict.fromkeys(check_text(id, what="job id") for id in job_ids))
        found = await (await self._open_store()).get_jobs(ids, connection=connection)
        jobs = [decoded_job(self.job_types, job) for job in found if job is not None]
        if len(jobs) < len(ids):
            raise JobNotFoundError(ids[found.index(None)])
        return jobs

    async def _records(self, ids: Sequence[str], connection: Any) -> list[ChainRecord]:
        rows = await (await self._open_store()).get_chains(ids, connection=connection)
        records = [record for record in rows if record is not None]
        if len(records) < len(rows):
            raise ChainNotFoundError(ids[rows.index(None)])
        return records

    # --- wait ---------------------------------------------------------------------------------------------------------

    async def wait(self, chains: Iterable[AsyncChain[R]], *, timeout: float | None = None) -> list[AsyncChain[R]]:
        """Wait until all these chains are closed, in whatever status; update their handles and return them.

        Notifications wake it, and it polls every few seconds as well. While the store cannot be reached, it keeps
        waiting. A handle is updated as soon as its chain has closed, also if the wait times out.

        Args:
            chains: handles of this client; :meth:`get_chain` returns one for an id.
            timeout: seconds; None waits for ever.

        Raises:
            WaitTimeoutError: some are still open after ``timeout`` seconds; they keep running.
            ChainNotFoundError: one was deleted, or its transaction was rolled back.
            ConfigurationError: one of them is no handle.
        """
        handles = chains if type(chains) is list else listed(chains, "chains must be a sequence of handles")
        for chain in handles:
            if not isinstance(chain, AsyncChain):
                raise ConfigurationError(
                    f"chains must be handles of this client, got {chain!r:.200}: get_chain(id) returns one"
                )

        def update(closed: dict[str, ChainRecord]) -> None:
            for chain in handles:
                if chain.id in closed:
                    chain._update(closed[chain.id])

        watcher = AsyncChainWatcher(await self._open_store(), self.job_types, self.notify, self.observers, timeout)
        try:
            await watcher.wait([chain.id for chain in handles], on_closed=update)
        finally:
            watcher.close()
        return handles

    async def watch_chain(
        self, chain: ChainReference, *, interval: float = 1.0, timeout: float | None = None
    ) -> AsyncGenerator[ChainState, None]:
        """Yield where a chain is: at once, after each change, and a last time when it is closed. See ``chain.watch``.

        Args:
            chain: its id, or a handle, which is not updated.
            interval: seconds between two reads.
            timeout: seconds; None watches until the chain is closed.

        Raises:
            WaitTimeoutError: it is still open after ``timeout`` seconds; it keeps running.
            ChainNotFoundError: it does not exist, was deleted, or its transaction was rolled back.
            ConfigurationError: ``interval`` is not above 0.
        """
        if not interval > 0:
            raise ConfigurationError(f"interval must be above 0 seconds, got {interval!r}")
        [id] = chain_ids([chain])
        watcher = AsyncChainWatcher(await self._open_store(), self.job_types, self.notify, self.observers, timeout)
        try:
            async for state in watcher.states(id, interval):
                yield decoded_state(self.job_types, state)
        finally:
            watcher.close()


def _parts(jobs: list[NewJob], made: Iterator[NewJob]) -> Iterator[list[NewJob]]:
    """Yield the jobs, and then in parts those that are still to be made. They are added to the list."""
    yield jobs[:]
    for part in parts(made):
        jobs += part
        yield part
