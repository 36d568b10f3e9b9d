"""The argument of a handler: the attempt, with its abort signal and the context that middlewares fill."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, TypeAlias, TypeVar, overload

from typing_extensions import TypeVar as TypeVarWithDefault

from queuert.client import AsyncClient, Client
from queuert.errors import ContextMissingError, DefinitionError, LeaseLostError
from queuert.job_types import JobType, not_a_job_type
from queuert.jobs import AbortReason, Blocker
from queuert.new_chain import ChainReference, NewChain, checked_priority, resolve_blockers
from queuert.outcomes import (
    Cancel,
    ContinueWith,
    Fail,
    Inherited,
    Retry,
    Snooze,
    WaitFor,
    checked_inherit,
    pause,
    pause_until,
)
from queuert.progress import checked_progress, stored_progress
from queuert.run_at import RunAt
from queuert.schedules import Tick, tick_in
from queuert.state.paging import PageRequest
from queuert.state.types import ClaimedJob
from queuert.texts import check_text
from queuert.trace_context import decoded_context
from queuert.worker import blocker_outputs
from queuert.worker.earlier_jobs import EarlierJobs, page_before
from queuert.worker.finishes import check_continuation
from queuert.worker.modes import Unawaited, check_event_loop, check_no_event_loop, mark_coroutine_function
from queuert.worker.start_options import StartOptions
from queuert.worker.steps import AttemptSteps, StepTracker
from queuert.worker.transaction_blocks import (
    BlockHost,
    BlockMiddleware,
    BlockTracker,
    Completion,
    GuardedBlock,
    GuardedTransaction,
    WrappedBlock,
)

_logger = logging.getLogger("queuert.worker")

_signal_lock = threading.Lock()
"""One lock for all signals: it is used only when a signal is set or gets a callback, which is rare."""


class AbortSignal:
    """Says whether an attempt must stop, and why. It is set once; the first reason stays.

    When it is set, a coroutine is cancelled. A function in a thread cannot be cancelled: it should check ``reason``
    between its steps, or wait on the signal instead of sleeping::

        if attempt.abort.wait_sync(5.0):
            return attempt.retry()          # ignored, as the attempt is aborted: what matters is to stop
    """

    __slots__ = ("_callbacks", "_job_id", "_reason")

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._reason: AbortReason | None = None
        self._callbacks: tuple[Callable[[], None], ...] = ()

    @property
    def reason(self) -> AbortReason | None:
        """Why the attempt must stop; None while it need not."""
        return self._reason

    def __bool__(self) -> bool:
        return self._reason is not None

    def wait_sync(self, timeout: float | None = None) -> AbortReason | None:
        """Wait, in a thread, until the attempt must stop, at most ``timeout`` seconds; return the reason or None.

        Raises:
            StepMisuseError: an event loop runs here, which it would block: write ``await attempt.abort.wait(...)``.
        """
        check_no_event_loop("abort.wait")
        event = threading.Event()
        with self._listening(event.set):
            event.wait(timeout)
        return self._reason

    def wait(self, timeout: float | None = None) -> Coroutine[Any, Any, AbortReason | None]:
        """Wait, in a coroutine, until the attempt must stop, at most ``timeout`` seconds; return the reason or None.

        Raises:
            StepMisuseError: no event loop runs here: a plain function calls ``attempt.abort.wait_sync(...)``.
        """
        check_event_loop("abort.wait")
        return self._wait(timeout)

    async def _wait(self, timeout: float | None) -> AbortReason | None:
        loop = asyncio.get_running_loop()
        event = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # The loop has closed, so nobody waits.
                loop.call_soon_threadsafe(event.set)

        with self._listening(wake), suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await event.wait()
        return self._reason

    @contextmanager
    def _listening(self, callback: Callable[[], None]) -> Iterator[None]:
        self.on_abort(callback)
        try:
            yield
        finally:
            with _signal_lock:
                self._callbacks = tuple(each for each in self._callbacks if each is not callback)

    def raise_if_set(self) -> None:
        """Raise LeaseLostError with the reason if the attempt must stop."""
        if self._reason is not None:
            raise LeaseLostError(self._job_id, self._reason)

    def on_abort(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the signal is set, from the thread that sets it; at once if it is set already.

        It must not block. What it raises is written to the log, and other callbacks are called.
        """
        with _signal_lock:
            if self._reason is None:
                self._callbacks = (*self._callbacks, callback)
                return
        _call(callback)

    def forget_callbacks(self) -> None:
        """Remove the callbacks, since the attempt is over: they refer to it, so only a collection would free it."""
        self._callbacks = ()

    def set(self, reason: AbortReason) -> bool:
        """Set the signal. Only the worker calls it. Return False if it was set before."""
        with _signal_lock:
            if self._reason is not None:
                return False
            self._reason = reason
            callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            _call(callback)
        return True


def _call(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:
        _logger.exception("a callback of attempt.abort failed")


T = TypeVar("T")
D = TypeVar("D")


class ContextKey(Generic[T]):
    """A key of ``attempt.context`` whose values are of type ``T``. Make it once, at the top of a module, and share it::

        TENANT = ContextKey[Tenant]("tenant")

    Two keys of the same name are different keys.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"ContextKey({self.name!r})"


class AttemptContext:
    """Values that middlewares pass to the handler of one attempt, by key. In a child process there are none."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[ContextKey[Any], Any] = {}

    def set(self, key: ContextKey[T], value: T) -> None:
        """Set the value of a key, or replace it."""
        self._values[key] = value

    def __getitem__(self, key: ContextKey[T]) -> T:
        """Return the value of a key.

        Raises:
            ContextMissingError: it has none.
        """
        try:
            value: T = self._values[key]
        except KeyError:
            raise ContextMissingError(f"nothing was set in attempt.context under {key!r}: add its middleware") from None
        return value

    @overload
    def get(self, key: ContextKey[T]) -> T | None: ...
    @overload
    def get(self, key: ContextKey[T], default: D) -> T | D: ...
    def get(self, key: ContextKey[Any], default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        return self._values.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __repr__(self) -> str:
        return f"AttemptContext({', '.join(key.name for key in self._values)})"


I = TypeVar("I")  # noqa: E741
R = TypeVarWithDefault("R", default=Any)
S = TypeVarWithDefault("S", default=Any, covariant=True)
_N = TypeVar("_N")
_O = TypeVar("_O")

MakeBlockMiddleware: TypeAlias = "Callable[[Attempt[Any, Any], WrappedBlock], BlockMiddleware]"
"""Makes the middleware of a block of an attempt."""


class Attempt(AttemptSteps, Generic[I, R, S]):
    """One claim of one job, under a lease that is renewed while the handler runs.

    ``I`` is the type of the job's input, ``R`` that of the chain's result, ``S`` that of ``resources``; ``R`` and ``S``
    are ``Any`` by default, for a handler that only continues its chain: ``Attempt[Resize]``.

    Attributes:
        input: the job's input, decoded and validated.
        job_id: the job's id.
        chain_id: the id of its chain.
        type: the name of its job type.
        chain_type: the name of the job type of the chain's first job.
        number: 1 for the first attempt.
        priority: the job's priority.
        created_at, scheduled_at: when the job was created, and when it became due.
        tick: the tick of the schedule that started the chain.
        resources: what the lifespan of the processors has yielded.
        client, client_sync: the worker's client, an AsyncClient or a Client.
        token: the token of the lease; no other claim of any job has the same.
        worker: the name of the worker that runs it.
        blockers: the chains that the job waited for, in the order in which they were passed, with their outputs.
        abort: the signal that says whether the attempt must stop, and why.

    Example::

        if attempt.number > 3:
            return attempt.fail(f"{attempt.job_id} does not get better")
        return attempt.retry(after=5)
    """

    __slots__ = (
        "_block_middleware", "_blocks_used", "_claimed", "_context", "_host", "_job_type", "_steps_used", "abort",
        "blockers", "input", "worker",
    )  # fmt: skip

    def __init__(
        self,
        job_type: JobType[I, R],
        claimed: ClaimedJob,
        input: I,
        worker: str,
        abort: AbortSignal,
        blockers: Sequence[Blocker],
        host: BlockHost,
        block_middleware: MakeBlockMiddleware | None = None,
    ) -> None:
        self._job_type = job_type
        self._host = host
        self._block_middleware = block_middleware
        self._blocks_used: BlockTracker | None = None
        self._steps_used: StepTracker | None = None
        self._unawaited: Unawaited | None = None
        self._context: AttemptContext | None = None
        self._claimed = claimed
        self.input: I = input
        self.worker = worker
        self.abort = abort
        self.blockers = blockers

    @property
    def context(self) -> AttemptContext:
        """The values that middlewares have set, by typed keys."""
        if self._context is None:
            self._context = AttemptContext()
        return self._context

    @property
    def resources(self) -> S:
        """What the ``lifespan`` of the processors has yielded; the same object in all attempts of a worker.

        Raises:
            DefinitionError: the processors have no lifespan.
        """
        resources: S = self._host.resources()
        return resources

    @property
    def _blocks(self) -> BlockTracker:
        if self._blocks_used is None:
            self._blocks_used = BlockTracker(self.abort.raise_if_set)
        return self._blocks_used

    @property
    def _steps(self) -> StepTracker:
        if self._steps_used is None:
            self._steps_used = StepTracker(self._claimed, self._job_type, self._host, self._blocks)
        return self._steps_used

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._claimed.id

    @property
    def chain_id(self) -> str:
        """The id of the job's chain."""
        return self._claimed.chain_id

    @property
    def type(self) -> str:
        """The name of the job's type."""
        return self._claimed.type

    @property
    def chain_type(self) -> str:
        """The name of the job type of the chain's first job."""
        return self._claimed.chain_type

    @property
    def number(self) -> int:
        """1 for the first attempt."""
        return self._claimed.attempt

    @property
    def priority(self) -> int:
        """The job's priority."""
        return self._claimed.priority

    @property
    def created_at(self) -> datetime:
        """When the job was created, by the store's clock."""
        return self._claimed.created_at

    @property
    def scheduled_at(self) -> datetime:
        """When the job became due, by the store's clock: its ``run_at``, or the end of the pause before a retry."""
        return self._claimed.scheduled_at

    @property
    def tick(self) -> Tick | None:
        """The tick of the schedule that started the chain, by the chain's id; None for any other id."""
        return tick_in(self._claimed.chain_id)

    @property
    def client(self) -> AsyncClient:
        """The worker's client, for a coroutine.

        Raises:
            DefinitionError: the worker has a ``Client``: use ``client_sync``; or it is in another process.
        """
        client = self._host.client()
        if not isinstance(client, AsyncClient):
            raise DefinitionError(
                "attempt.client needs a worker with an AsyncClient, and it has a Client: use attempt.client_sync in a "
                "plain function, or make an AsyncClient in the lifespan"
            )
        return client

    @property
    def client_sync(self) -> Client:
        """The worker's client, for a plain function.

        Raises:
            DefinitionError: the worker has an ``AsyncClient``: make a ``Client`` in the lifespan of the processors; or
                it is in another process.
        """
        client = self._host.client()
        if not isinstance(client, Client):
            raise DefinitionError(
                "attempt.client_sync needs a worker with a Client, and it has an AsyncClient: use attempt.client in a "
                "coroutine, or make a Client in the lifespan"
            )
        return client

    def read_start(self) -> Coroutine[Any, Any, StartOptions]:
        """Read the attributes of the chain and the limit key of the job, in a coroutine.

        The claim does not return them: this reads two rows. Pass them on to inherit them::

            options = await attempt.read_start()
            return attempt.continue_with(publish, Thumbnail(key="k"), limit_key=options.limit_key)

        Raises:
            JobNotFoundError: the job was deleted.
            StateUnavailableError: the store cannot be reached.
            StepMisuseError: it is called in a plain function, which calls ``read_start_sync``.
        """
        return self._to_await("read_start", None, self._read_start)

    async def _read_start(self) -> StartOptions:
        self._host.check_event_loop()
        return await self._host.read_start()

    def read_start_sync(self) -> StartOptions:
        """``read_start`` for plain functions, also in a child process."""
        self._check_in_thread("read_start")
        self._host.check_process()
        return self._host.read_start_in_thread()

    def read_earlier_jobs(self, *, limit: int = 50) -> Coroutine[Any, Any, EarlierJobs]:
        """Read the jobs of the chain before this one, with their inputs and kept outputs, in a coroutine.

        The claim does not return them: this is one statement, and none in the first job of a chain. A job keeps an
        output by ``continue_with(..., output=...)``::

            earlier = await attempt.read_earlier_jobs()
            resized = earlier.get(resize)  # the newest job of this type, or None; its input is typed

        Args:
            limit: how many are read at most, the newest; 1 to 1,000.

        Raises:
            ConfigurationError: the limit is out of range.
            StateUnavailableError: the store cannot be reached.
            StepMisuseError: it is called in a plain function, which calls ``read_earlier_jobs_sync``.
        """
        return self._to_await("read_earlier_jobs", None, self._read_earlier_jobs, page_before(self._claimed, limit))

    async def _read_earlier_jobs(self, page: PageRequest) -> EarlierJobs:
        self._host.check_event_loop()
        return EarlierJobs(await self._host.read_chain_jobs(page) if self._claimed.chain_index else ())

    def read_earlier_jobs_sync(self, *, limit: int = 50) -> EarlierJobs:
        """``read_earlier_jobs`` for plain functions, also in a child process."""
        self._check_in_thread("read_earlier_jobs")
        self._host.check_process()
        page = page_before(self._claimed, limit)
        return EarlierJobs(self._host.read_chain_jobs_in_thread(page) if self._claimed.chain_index else ())

    @property
    def trace_context(self) -> Mapping[str, str]:
        """The trace context that was stored when the job was created, as a mapping; empty if there is none."""
        return decoded_context(self._claimed.trace_context)

    @property
    def token(self) -> str:
        """The token of the lease: unique to this attempt, also when the job's id is used again."""
        return self._claimed.token

    @property
    def worker_stopping(self) -> bool:
        """Whether the worker has been asked to stop: after the shutdown timeout the attempt is aborted."""
        return self._host.worker_stopping()

    def record_progress(
        self,
        done: float | None = None,
        total: float | None = None,
        *,
        fraction: float | None = None,
        message: str | None = None,
    ) -> None:
        """Record how far the work is. It is shown as ``job.progress``, and by ``queuert jobs show``.

        It does not wait, and may be called as often as you like, from any thread: the newest progress is written with
        the renewals of the worker's leases, at most once in a second, and with the end of the attempt. It is kept then;
        the next attempt begins without any. An attempt that has lost its lease writes nothing. Inside a :meth:`phase`
        it is the progress of the phase, and that of the job follows from it; before the first phase of a job with
        phases it does nothing::

            for number in range(10):
                attempt.record_progress(number, 10, message="pages")

        Args:
            done: how much is done, in any unit.
            total: how much there is to do, in the same unit.
            fraction: between 0 and 1; by default ``done / total``.
            message: a text of at most 1,000 characters, stored in the format of the job type.

        Raises:
            ConfigurationError: a number is negative or not finite, the fraction is above 1, the message is too long or
                cannot be stored, or no argument was passed.
            PayloadError: the format of the job type cannot encode the message.
        """
        progress = checked_progress(done, total, fraction, message)
        if not self._job_type.phases:
            self._host.record_progress(stored_progress(self._job_type, self.number, progress))
        elif self._steps_used is not None:
            self._steps_used.phases.record(progress, self._host.record_progress)

    def __repr__(self) -> str:
        return f"Attempt({self.type!r}, job {self.job_id!r}, number {self.number})"

    # --- blockers -----------------------------------------------------------------------------------------------------

    @property
    def failed_blockers(self) -> list[Blocker]:
        """The blockers that failed or were cancelled. There are none without ``on_blocker_failure="run"``."""
        return blocker_outputs.failed(self.blockers)

    def outputs_of(self, job_type: JobType[Any, _O]) -> list[_O]:
        """Return the outputs of all blockers whose chain began with a job of this type, in the order of ``blockers``.

        Raises:
            BlockerFailedError: one of them failed or was cancelled.
        """
        return blocker_outputs.outputs(self.blockers, job_type)

    def output_of(self, job_type: JobType[Any, _O]) -> _O:
        """Return the output of the only blocker whose chain began with a job of this type.

        Raises:
            BlockerMismatchError: there is none, or more than one.
            BlockerFailedError: it failed or was cancelled.
        """
        return blocker_outputs.only_output(self.blockers, job_type)

    # --- outcomes -----------------------------------------------------------------------------------------------------

    def continue_with(
        self,
        job_type: JobType[_N, R],
        input: _N,
        *,
        id: str | None = None,
        run_at: RunAt | None = None,
        priority: int | None = None,
        blockers: Iterable[ChainReference] = (),
        output: Any = None,
        limit_key: str | None = None,
        inherit: Iterable[Literal["limit_key"]] = (),
    ) -> ContinueWith[R]:
        """Return the outcome that continues the chain with another job. The handler must return it.

        Args:
            job_type: the job type of the next job, which that of this job declares in ``continues_with``.
            input: the next job's input.
            id: its id, at most 512 characters; by default a new UUID.
            run_at: when it may first run; by default at once.
            priority: by default that of this job.
            blockers: chains that must close before it may run.
            output: stored with this job, for ``get_job``: of the type that this job's type declares as ``output``, if
                it does, else any JSON. The chain's output is that of its last job.
            limit_key: the key under which the per-key limits of its job type count it.
            inherit: ``["limit_key"]`` gives it the limit key of this job, if ``limit_key`` is None: the store copies it
                when it writes the finish. Attributes, ``result_ttl`` and deduplication key are those of the chain.

        Raises:
            UndeclaredContinuationError: the job type of this job does not declare the continuation.
            PayloadError: the input or the output cannot be stored.
            ConfigurationError: ``inherit`` names something else, or the priority is out of range.
            DefinitionError: ``job_type`` is not a JobType; or the next job would wait for its own chain, or for chains
                that its type does not declare.
        """
        if not isinstance(job_type, JobType):
            raise not_a_job_type(job_type)
        check_continuation(self._job_type, job_type.name)
        awaited = resolve_blockers(job_type, blockers)
        if self.chain_id in awaited:
            raise DefinitionError("a job cannot wait for its own chain: it would wait for ever")
        return ContinueWith(
            job_type=job_type.name,
            input=job_type.encode_input(input),
            id=None if id is None else check_text(id, what="id"),
            priority=None if priority is None else checked_priority(priority),
            run_at=run_at,
            blockers=awaited,
            output=None if output is None else self._job_type.encode_kept_output(output),
            limit_key=None if limit_key is None else check_text(limit_key, what="limit key"),
            inherit_limit_key=bool(checked_inherit(inherit, ("limit_key",))),
        )

    def wait_for(self, *chains: NewChain[Any] | ChainReference, inherit: Iterable[Inherited] = ()) -> WaitFor:
        """Return the outcome that runs the handler again, from its beginning, after these chains have closed.

        The handler must return it. Each ``NewChain`` is started in the commit that writes the wait. In the next attempt
        the chains are in ``attempt.blockers``, after those that were there before, so the handler knows its step::

            if not attempt.blockers:
                return attempt.wait_for(*(NewChain(resize, Resize(url=url, width=width)) for width in (100, 200)))
            return [published.address for published in attempt.outputs_of(resize)]

        ``inherit`` gives the new chains what this job has, unless they have it of their own: ``"limit_key"`` and
        ``"priority"`` (which a chain has of its own if it is not 0) of this job, ``"attributes"`` of its chain. The
        store copies limit key and attributes when it writes the wait.

        The attempt does not count.

        Raises:
            ConfigurationError: ``inherit`` names something else.
            DefinitionError: no chain was passed, or only chains that the job has waited for and that are completed, or
                its own chain, or a ``NewChain`` with blockers, deduplication or ``attach``.
            BlockerMismatchError: the job type declares other blockers.
            UnknownJobTypeError: a type is not registered with the worker's client.
            PayloadError: an input cannot be stored.
        """
        return blocker_outputs.wait_outcome(
            self._job_type, self._claimed, self.blockers, self._host.job_types, chains, inherit
        )

    def retry(self, *, after: float | timedelta | None = None, reason: str = "the handler asked for it") -> Retry:
        """Return the outcome that retries the job after ``after`` seconds, by default the pause of the retry policy.

        The handler must return it. The attempt counts.

        Raises:
            ConfigurationError: ``after`` is negative, or longer than a hundred years.
        """
        return Retry(after=None if after is None else pause(after), reason=reason)

    def snooze(self, seconds: float | timedelta | None = None, /, *, until: datetime | None = None) -> Snooze:
        """Return the outcome that runs the handler again, from its beginning, at a later time.

        The handler must return it. The attempt does not count and is no failure, so a handler may wait in this way for
        something outside for as long as it likes::

            if attempt.number < 3:
                return attempt.snooze(30)

        Args:
            seconds: how long, in seconds or as a timedelta.
            until: or when: a datetime with a time zone, compared with the clock of the store.

        Raises:
            ConfigurationError: both or none of them were passed, ``seconds`` is negative or longer than a hundred
                years, or ``until`` has no time zone.
        """
        return Snooze(pause_until(seconds, until))

    def fail(self, reason: str) -> Fail:
        """Return the outcome that fails the chain with this reason, without further attempts."""
        return Fail(reason)

    def cancel(self, reason: str = "the handler asked for it") -> Cancel:
        """Return the outcome that cancels the chain with this reason."""
        return Cancel(reason)

    # --- transactions -------------------------------------------------------------------------------------------------

    def prepare(self) -> GuardedBlock[GuardedTransaction]:
        """Open a transaction at the beginning of the work, to read what it needs, or to record that it began.

        It commits at the end of the block, if the lease still holds; the job goes on. Do long work after it, outside of
        any transaction, and use ``complete()`` at the end. Use ``async with`` in a coroutine and ``with`` in a plain
        function, once::

            async with attempt.prepare() as tx:
                await tx.connection.execute("update pages set views = views + 1")

        An exception in the block rolls it back, and the attempt fails. What it committed remains if the attempt fails
        later.

        Raises:
            LeaseLostError: the lease is lost; nothing was written. Do not catch it.
            CompletionMisuseError: it was used before, or after ``complete()``, or inside another block.
            StateError: a statement in the block failed, and its error was caught: nothing was written.
            StateUnavailableError: the connection broke; it may have been committed. The attempt is repeated.
        """
        return GuardedBlock("prepare", self._host, self._blocks, GuardedTransaction, self._around("prepare"))

    def transaction(self) -> GuardedBlock[GuardedTransaction]:
        """Open a transaction in the middle of the work: as ``prepare``, but at any time, and any number of times.

        It commits only if the lease holds, so an attempt that has lost its lease cannot overwrite what the next attempt
        wrote. Middlewares do not wrap it.

        Raises:
            LeaseLostError: the lease is lost; nothing was written. Do not catch it.
            CompletionMisuseError: it is used inside another block, or the job has its finish.
            StateError: a statement in the block failed, and its error was caught: nothing was written.
            StateUnavailableError: the connection broke; it may have been committed. The attempt is repeated.
        """
        return GuardedBlock("transaction", self._host, self._blocks, GuardedTransaction)

    def _around(self, block: WrappedBlock) -> BlockMiddleware | None:
        return None if self._block_middleware is None else self._block_middleware(self, block)

    def complete(self) -> Completion[R]:
        """Open a transaction for your own writes and the job's finish, which commit together or not at all.

        It is fenced by the lease: while it is open nobody else can claim the job, and it cannot be opened after
        somebody has. Use ``async with`` in a coroutine and ``with`` in a plain function. Call ``tx.finish`` once, at
        the end, and return what it returns::

            async with attempt.complete() as tx:
                await tx.connection.execute("update pages set views = views + 1")
                return tx.finish(Published(address="https://example.org"))

        Use ``SET LOCAL`` for settings of the session: others would stay with the connection, for later transactions.
        Keep it short, since it holds row locks. An exception in the block rolls it back, and the attempt fails.

        Raises:
            LeaseLostError: the lease is lost; nothing was written. Do not catch it.
            CompletionMissingError: the block ended without ``tx.finish``; it was rolled back.
            CompletionMisuseError: it was used before in this attempt, or inside another block.
            StateUnavailableError: the connection broke. Unless it finds that the commit succeeded, the attempt is
                repeated.
        """
        return Completion(self._host, self._blocks, self._around("complete"))


mark_coroutine_function(AbortSignal.wait)
