"""What a handler gets: the attempt, its abort signal, and the values that middlewares hand inward."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from queuert.errors import ContextMissingError, DefinitionError, LeaseLostError
from queuert.job_types import JobType
from queuert.jobs import AbortReason, Blocker
from queuert.new_chain import ChainReference, NewChain, checked_priority, resolve_blockers
from queuert.outcomes import Cancel, ContinueWith, Fail, Retry, WaitFor, pause
from queuert.payloads import check_text
from queuert.progress import checked_progress, stored_progress
from queuert.run_at import RunAt
from queuert.state.types import ClaimedJob
from queuert.trace_context import decoded_context
from queuert.worker import blocker_outputs as joining
from queuert.worker.finishes import check_continuation
from queuert.worker.middleware import Phase, PhaseMiddlewares
from queuert.worker.transaction_blocks import BlockHost, BlockTracker, Completion, GuardedBlock, GuardedTransaction

if TYPE_CHECKING:
    from queuert.worker.middleware import Middleware


_logger = logging.getLogger("queuert.worker")

_signal_lock = threading.Lock()
"""For all signals: it is taken when one is set or listened to, and most never are."""


class AbortSignal:
    """Says whether an attempt must stop. It is set once; the first reason stays.

    A coroutine is cancelled when it is set; a function in a thread cannot be, and should look at ``reason`` between
    its steps, or wait on the signal instead of sleeping::

        if attempt.abort.wait(5.0):
            return attempt.retry()          # nobody will hear it; what matters is to stop
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

    def wait(self, timeout: float | None = None) -> AbortReason | None:
        """Wait, in a thread, until the attempt must stop, at most ``timeout`` seconds; the reason, or None."""
        event = threading.Event()
        with self._listening(event.set):
            event.wait(timeout)
        return self._reason

    async def wait_async(self, timeout: float | None = None) -> AbortReason | None:
        """Wait, in a coroutine, until the attempt must stop, at most ``timeout`` seconds; the reason, or None."""
        loop = asyncio.get_running_loop()
        event = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # The loop has closed: nobody waits any more.
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
                self._callbacks = tuple(one for one in self._callbacks if one is not callback)

    def raise_if_set(self) -> None:
        """Raise LeaseLostError with the reason if the attempt must stop."""
        if self._reason is not None:
            raise LeaseLostError(self._job_id, self._reason)

    def on_abort(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the signal is set, from the thread that sets it; at once if it is set already.

        Be quick in it. What it raises goes to the log and disturbs nobody.
        """
        with _signal_lock:
            if self._reason is None:
                self._callbacks = (*self._callbacks, callback)
                return
        _call(callback)

    def forget_callbacks(self) -> None:
        """The attempt is over. Its callbacks lead back to it, and would leave it to the garbage collector."""
        self._callbacks = ()

    def set(self, reason: AbortReason) -> bool:
        """Set the signal. The worker does; False if it was set before."""
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
    """A key of ``attempt.context`` whose values are of type ``T``. Make one, at the top of a module, and share it::

        TENANT = ContextKey[Tenant]("tenant")

    Two keys of one name are two.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"ContextKey({self.name!r})"


class AttemptContext:
    """The values of one attempt, by key. A handler in a child process sees none of them."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[ContextKey[Any], Any] = {}

    def set(self, key: ContextKey[T], value: T) -> None:
        """Hand a value inward; one that was set before is replaced."""
        self._values[key] = value

    def __getitem__(self, key: ContextKey[T]) -> T:
        """The value of a key.

        Raises:
            ContextMissingError: nothing was set under it.
        """
        try:
            found: T = self._values[key]
        except KeyError:
            raise ContextMissingError(f"nothing was set in attempt.context under {key!r}: add its middleware") from None
        return found

    @overload
    def get(self, key: ContextKey[T]) -> T | None: ...
    @overload
    def get(self, key: ContextKey[T], default: D) -> T | D: ...
    def get(self, key: ContextKey[Any], default: Any = None) -> Any:
        """The value of a key, or the default."""
        return self._values.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __repr__(self) -> str:
        return f"AttemptContext({', '.join(key.name for key in self._values)})"


I = TypeVar("I")  # noqa: E741
R = TypeVar("R")
_N = TypeVar("_N")
_O = TypeVar("_O")


class Attempt(Generic[I, R]):
    """One claim of one job, under a lease that is renewed while the handler runs.

    ``I`` is the job's input, ``R`` what its chain ends with.

    Attributes:
        input: the job's input, decoded and validated.
        job_id: the job's id.
        chain_id: the id of its chain.
        type: the name of its job type.
        chain_type: the name of the job type that the chain began with.
        number: 1 for the first attempt.
        priority: the job's priority.
        created_at: when the job was created.
        token: names the lease of this attempt; no other claim of any job has the same.
        worker: the name of the worker that runs it.
        blockers: the chains that the job waited for, in the order in which they were given, with their outputs.
        abort: says whether and why the attempt must stop.

    Example::

        if attempt.number > 3:
            return attempt.fail(f"{attempt.job_id} does not get better")
        return attempt.retry(after=5)
    """

    __slots__ = (
        "_blocks_used", "_claimed", "_context", "_host", "_job_type", "_middlewares", "abort", "blockers", "input",
        "worker",
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
        middlewares: Sequence[Middleware] = (),
    ) -> None:
        self._job_type = job_type
        self._host = host
        self._middlewares = middlewares
        self._blocks_used: BlockTracker | None = None
        self._context: AttemptContext | None = None
        self._claimed = claimed
        self.input: I = input
        self.worker = worker
        self.abort = abort
        self.blockers = blockers

    @property
    def context(self) -> AttemptContext:
        """What middlewares hand inward, under typed keys."""
        if self._context is None:
            self._context = AttemptContext()
        return self._context

    @property
    def _blocks(self) -> BlockTracker:
        if self._blocks_used is None:
            self._blocks_used = BlockTracker(self.abort)
        return self._blocks_used

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
        """The name of the job type that the chain began with."""
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
    def trace_context(self) -> Mapping[str, str]:
        """The trace context that the job was created with, as in the headers of a message; empty if there is none."""
        return decoded_context(self._claimed.trace_context)

    @property
    def token(self) -> str:
        """The token of the lease: unique to this attempt, also when the job's id is used again."""
        return self._claimed.token

    @property
    def worker_stopping(self) -> bool:
        """Whether the worker has been asked to stop: finish soon, or the job is released when the grace is over."""
        return self._host.worker_stopping()

    def record_progress(
        self,
        done: float | None = None,
        total: float | None = None,
        *,
        fraction: float | None = None,
        message: str | None = None,
    ) -> None:
        """Tell how far the work is: others see it as ``job.progress``, and by ``queuert jobs show``.

        It waits for nothing, and may be called as often as you like, from any thread: the newest is written with the
        renewals of the worker's leases, at most once in a second. What is told in the last second before the end may
        be lost. It is kept when the attempt has ended; the next attempt begins without any. No event tells of it, and
        an attempt that has lost its lease changes nothing::

            for number in range(10):
                attempt.record_progress(number, 10, message="pages")

        Args:
            done: how much is done, in units of your own.
            total: of how much.
            fraction: between 0 and 1; by default ``done / total``.
            message: at most 1,000 characters, stored as the payloads of the job's type are.

        Raises:
            ConfigurationError: a number is negative or no number, the fraction is above 1, the message is too long or
                cannot be stored, or none of them is given.
            PayloadError: the format of the job's type cannot write the message.
        """
        progress = checked_progress(done, total, fraction, message)
        self._host.progressed(stored_progress(self._job_type, self.number, progress))

    def __repr__(self) -> str:
        return f"Attempt({self.type!r}, job {self.job_id!r}, number {self.number})"

    # --- what it waited for -------------------------------------------------------------------------------------------

    @property
    def failed_blockers(self) -> list[Blocker]:
        """The blockers without an output: failed or cancelled. Only with ``on_blocker_failure="run"`` are there any."""
        return joining.failed(self.blockers)

    def outputs_of(self, job_type: JobType[Any, _O]) -> list[_O]:
        """The outputs of all blockers whose chain began with a job of this type, in the order of ``blockers``.

        Raises:
            BlockerFailedError: one of them failed or was cancelled.
        """
        return joining.outputs(self.blockers, job_type)

    def output_of(self, job_type: JobType[Any, _O]) -> _O:
        """The output of the only blocker whose chain began with a job of this type.

        Raises:
            BlockerMismatchError: there is none, or more than one.
            BlockerFailedError: it failed or was cancelled.
        """
        return joining.only_output(self.blockers, job_type)

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
    ) -> ContinueWith[R]:
        """The chain goes on with another job: return it.

        Args:
            job_type: one of those that the job's own type declares in ``continues_with``.
            input: the next job's input.
            id: its id, at most 512 characters; by default a new UUID.
            run_at: when it may run first; by default at once.
            priority: by default that of this job.
            blockers: chains that must close before it may run.
            output: kept with this job, to be read by ``get_job``: what its own type declares as ``output``, if it does,
                else anything that is JSON. The chain's output is that of its last job.
            limit_key: what the per-key limits of its job type count it under; it is not inherited.

        Raises:
            UndeclaredContinuationError: the job's type does not declare it.
            PayloadError: the input, or the output to be kept, cannot be stored.
            DefinitionError: the job would wait for its own chain, or for others than its type declares.
        """
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
        )

    def wait_for(self, *chains: NewChain[Any] | ChainReference) -> WaitFor:
        """Run the handler again, from its beginning, when these chains have closed: return it.

        ``NewChain`` are started by it: they and the wait stand in one commit. The next time the chains are in
        ``attempt.blockers``, after those that were there, which is how the handler tells where it is::

            if not attempt.blockers:
                return attempt.wait_for(*(NewChain(resize, Resize(url=url, width=width)) for width in (100, 200)))
            return [published.address for published in attempt.outputs_of(resize)]

        The attempt does not count.

        Raises:
            DefinitionError: no chain is given, or only such as were waited for and completed, or the job's own; or a
                ``NewChain`` with blockers, a deduplication or ``attach``.
            BlockerMismatchError: the job's type declares other blockers.
            UnknownJobTypeError: a type is not registered with the worker's client.
            PayloadError: an input cannot be stored.
        """
        return joining.waiting(self._job_type, self._claimed, self.blockers, self._host.job_types, chains)

    def retry(self, *, after: float | timedelta | None = None, reason: str = "the handler asked for it") -> Retry:
        """Try again ``after`` seconds, or after the pause of the retry policy: return it. The attempt counts.

        Raises:
            ConfigurationError: ``after`` is negative, or longer than a hundred years.
        """
        return Retry(after=None if after is None else pause(after), reason=reason)

    def fail(self, reason: str) -> Fail:
        """Give up, whatever attempts are left: return it. The chain is ``failed`` with this reason."""
        return Fail(reason)

    def cancel(self, reason: str = "the handler asked for it") -> Cancel:
        """The job is no longer wanted: return it. The chain is ``cancelled``."""
        return Cancel(reason)

    # --- transactions -------------------------------------------------------------------------------------------------

    def prepare(self) -> GuardedBlock[GuardedTransaction]:
        """Open a transaction of your own at the beginning: read what the work needs, note that it began.

        It commits at the end of the block, only while the lease holds; the job goes on. Work that takes its time comes
        after it, outside of any transaction, and ``complete()`` at the end. Use ``async with`` in a coroutine and
        ``with`` in a plain function, once::

            async with attempt.prepare() as tx:
                await tx.connection.execute("update pages set views = views + 1")

        An exception inside rolls it back, and is a failed attempt. What it committed stands if the attempt fails later.

        Raises:
            LeaseLostError: the lease is lost; nothing was written. Let it pass.
            CompletionMisuseError: it was used before, or after ``complete()``, or inside another block.
            StateError: a statement inside failed, and its error was swallowed: nothing was written.
            StateUnavailableError: the connection broke; it may have been committed. The attempt is repeated.
        """
        return GuardedBlock("prepare", self._host, self._blocks, GuardedTransaction, self._around("prepare"))

    def transaction(self) -> GuardedBlock[GuardedTransaction]:
        """Open a transaction of your own in the middle of the work: as ``prepare``, at any time, any number of times.

        Without it a worker whose lease was lost could write over what its successor has done. Middlewares do not see
        it.

        Raises:
            LeaseLostError: the lease is lost; nothing was written. Let it pass.
            CompletionMisuseError: it is used inside another block, or the job has its finish.
            StateError: a statement inside failed, and its error was swallowed: nothing was written.
            StateUnavailableError: the connection broke; it may have been committed. The attempt is repeated.
        """
        return GuardedBlock("transaction", self._host, self._blocks, GuardedTransaction)

    def _around(self, phase: Phase) -> PhaseMiddlewares | None:
        return PhaseMiddlewares(self._middlewares, self, phase) if self._middlewares else None

    def complete(self) -> Completion[R]:
        """Open a transaction for your own writes and the job's finish, which commit together or not at all.

        It is fenced by the lease: while it is open nobody can take the job, and it cannot be opened once somebody has.
        Use ``async with`` in a coroutine and ``with`` in a plain function; call ``tx.finish`` once, last, and return
        what it returns::

            async with attempt.complete() as tx:
                await tx.connection.execute("update pages set views = views + 1")
                return tx.finish(Published(address="https://example.org"))

        Settings of the session that you change without ``SET LOCAL`` stay with the connection, and meet others later.
        Keep it short: it holds row locks. An exception inside rolls all of it back and is a failed attempt.

        Raises:
            LeaseLostError: the lease is lost; nothing was written. Let it pass.
            CompletionMissingError: the block ended without ``tx.finish``; it was rolled back.
            CompletionMisuseError: it was used before in this attempt, or inside another block.
            StateUnavailableError: the connection broke; unless the commit is known to stand, the attempt is repeated.
        """
        return Completion(self._host, self._blocks, self._around("complete"))
