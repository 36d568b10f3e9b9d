"""The transactions of an attempt: the blocks of ``prepare()``, ``transaction()`` and ``complete()``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    suppress,
)
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from queuert.errors import CompletionMissingError, CompletionMisuseError, StateUnavailableError, StepMisuseError
from queuert.new_chain import HasTypeNames
from queuert.outcomes import Outcome, _Finished
from queuert.state import AsyncStoreTransaction, StoreTransaction
from queuert.state.steps import EventWait, NewStep, StepRecord
from queuert.state.types import Finish, FinishResult
from queuert.worker import forks

if TYPE_CHECKING:
    from queuert.client import AsyncClient, Client
    from queuert.jobs import Job
    from queuert.state.paging import PageRequest
    from queuert.worker.phases import PhaseReport
    from queuert.worker.start_options import StartOptions

T = TypeVar("T", bound="GuardedTransaction")


class BlockHost(Protocol):
    """What the blocks of an attempt need of the worker, or of its child process."""

    @property
    def job_types(self) -> HasTypeNames:
        """The job types of the worker's client."""
        ...

    def resources(self) -> Any:
        """Return what the lifespan of the processors has yielded."""
        ...

    def client(self) -> AsyncClient | Client:
        """Return the worker's client."""
        ...

    async def read_start(self) -> StartOptions:
        """Read the attributes of the chain and the limit key of the job, in the worker's event loop."""
        ...

    def read_start_in_thread(self) -> StartOptions:
        """``read_start`` in a thread, or in a child process."""
        ...

    async def read_chain_jobs(self, page: PageRequest) -> Sequence[Job]:
        """Read jobs of the chain, the earliest first, in the worker's event loop."""
        ...

    def read_chain_jobs_in_thread(self, page: PageRequest) -> Sequence[Job]:
        """``read_chain_jobs`` in a thread, or in a child process."""
        ...

    def check_process(self) -> None:
        """Raise CompletionMisuseError in a process that the handler forked."""
        ...

    def check_event_loop(self) -> None:
        """Raise CompletionMisuseError unless the worker's own event loop runs here."""
        ...

    def in_event_loop(self) -> bool:
        """Whether the worker's own event loop runs here."""
        ...

    def worker_stopping(self) -> bool:
        """Whether the worker has been asked to stop."""
        ...

    def record_progress(self, progress: str) -> None:
        """Write progress, as it is stored, soon. From any thread; it does not wait."""
        ...

    async def get_steps(self) -> list[StepRecord]:
        """Read the recorded steps of the job, in the worker's event loop."""
        ...

    def get_steps_in_thread(self) -> list[StepRecord]:
        """``get_steps`` in a thread, or in a child process."""
        ...

    async def record_step(self, step: NewStep) -> StepRecord:
        """Record a step of the job under the lease, in the worker's event loop."""
        ...

    def record_step_in_thread(self, step: NewStep) -> StepRecord:
        """``record_step`` in a thread, or in a child process."""
        ...

    async def get_progress(self) -> str | None:
        """Read the progress of the job as it is stored, in the worker's event loop."""
        ...

    def get_progress_in_thread(self) -> str | None:
        """``get_progress`` in a thread, or in a child process."""
        ...

    async def begin_phase(self, progress: str) -> datetime:
        """Store the progress of a phase that begins, under the lease; return the time of the store."""
        ...

    def begin_phase_in_thread(self, progress: str) -> datetime:
        """``begin_phase`` in a thread, or in a child process."""
        ...

    def report_phase(self, report: PhaseReport) -> None:
        """Report a phase to the observers."""
        ...

    async def wait_for_event(self, wait: EventWait) -> StepRecord:
        """Record a wait of the job under the lease, and try to answer it."""
        ...

    def wait_for_event_in_thread(self, wait: EventWait) -> StepRecord:
        """``wait_for_event`` in a thread, or in a child process."""
        ...

    def check_sleep(self) -> None:
        """Raise StepMisuseError if the attempt cannot end by itself, since it shares its call with others."""
        ...

    def finish(self, outcome: Any) -> Finish:
        """Return the finish for an outcome."""
        ...

    async def finish_to_write(self, finish: Finish) -> Finish:
        """Return the finish of a block with the changes of ``after_attempt``, and the last progress of the attempt."""
        ...

    def finish_to_write_in_thread(self, finish: Finish) -> Finish:
        """``finish_to_write`` for a thread, which waits for it."""
        ...

    def begin(self) -> AbstractAsyncContextManager[AsyncStoreTransaction]:
        """Return a transaction that locks the job, for a coroutine."""
        ...

    def begin_in_thread(self) -> AbstractContextManager[StoreTransaction]:
        """Return a transaction that locks the job, for a thread."""
        ...

    def pause_renewal(self, abort_transaction: Callable[[], None]) -> None:
        """The transaction has locked the job, so its lease cannot be renewed. ``abort_transaction`` ends it."""
        ...

    def closing(self, task: asyncio.Task[None]) -> None:
        """This task closes an asynchronous block; it is not cancelled with the handler."""
        ...

    def committed(self, finish: Finish, result: FinishResult) -> None:
        """The finish is committed."""
        ...

    def settling(self, finish: Finish) -> AbstractContextManager[Any]:
        """Return a context manager that traces the write of the finish."""
        ...

    def end_block(self, indeterminate: Finish | None) -> None:
        """The transaction has ended without a finish, so the lease is renewed again.

        Or with this finish, if the answer to its commit was lost.
        """
        ...


class GuardedTransaction:
    """An open ``prepare()`` or ``transaction()`` block.

    Attributes:
        connection: the store's connection, inside the transaction: for Postgres ``psycopg.AsyncConnection`` in a
            coroutine, ``psycopg.Connection`` in a plain function; for SQLite a ``sqlite3.Connection``. The block
            commits or rolls back; Postgres' ``transaction()`` makes savepoints. On Redis it raises
            UnsupportedConnectionError.
    """

    def __init__(self, transaction: StoreTransaction | AsyncStoreTransaction) -> None:
        self._transaction = transaction

    @property
    def connection(self) -> Any:
        return self._transaction.connection


WrappedBlock: TypeAlias = Literal["prepare", "complete"]
"""The blocks that middlewares wrap."""


class BlockMiddleware(Protocol):
    """Context managers that a block enters right after its transaction began, and leaves before the commit."""

    def layers(self, transaction: Any) -> list[AbstractAsyncContextManager[Any]]:
        """Return those for a coroutine, the outermost first."""
        ...

    def layers_in_thread(self, transaction: Any) -> list[AbstractContextManager[Any]]:
        """Return those for a thread, the outermost first."""
        ...


class BlockTracker:
    """Tracks the blocks of an attempt: which were requested, and which one is open, of which there is one at a time.

    ``raise_if_aborted`` raises LeaseLostError if the attempt is aborted.
    """

    __slots__ = ("_finished", "_open", "_raise_if_aborted", "_requested")

    def __init__(self, raise_if_aborted: Callable[[], None]) -> None:
        self._raise_if_aborted = raise_if_aborted
        self._requested: set[str] = set()
        self._open: str | None = None
        self._finished = False

    def request(self, name: str) -> None:
        """A method of the attempt was called, which returns a block.

        Raises:
            CompletionMisuseError: it was called before, or after ``complete()``.
            LeaseLostError: the attempt is aborted.
        """
        self._check_not_finished(name)
        if name == "prepare" and "complete" in self._requested:
            raise CompletionMisuseError("attempt.prepare() was called after attempt.complete()")
        if name not in ("transaction", "step_transaction") and name in self._requested:
            raise CompletionMisuseError(f"attempt.{name}() was called twice")
        self._raise_if_aborted()
        self._requested.add(name)

    def enter(self, name: str) -> None:
        """A block is about to begin.

        Raises:
            CompletionMisuseError: another one is open, or the job has its finish.
        """
        self._check_not_finished(name)
        if self._open is not None:
            raise CompletionMisuseError(
                f"attempt.{name}() inside attempt.{self._open}(): one block at a time; "
                "tx.connection.transaction() makes savepoints"
            )
        self._open = name

    def check_no_block(self, what: str) -> None:
        """Raise StepMisuseError if a block is open or the job has its finish, LeaseLostError if the attempt is aborted.

        A step that is recorded while a block is open would wait for the lock of that block.
        """
        if self._open is not None:
            raise StepMisuseError(f"{what} was called inside attempt.{self._open}(): call it before or after the block")
        if self._finished:
            raise StepMisuseError(f"{what} was called after attempt.complete(): the job has its finish")
        self._raise_if_aborted()

    def leave(self, *, finished: bool = False) -> None:
        """The block has ended; with ``finished`` it has committed the finish of the job."""
        self._open = None
        self._finished = self._finished or finished

    def _check_not_finished(self, name: str) -> None:
        if self._finished and name != "complete":
            raise CompletionMisuseError(f"attempt.{name}() after attempt.complete(): the job has its finish")


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_ExcInfo = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]


def _info(error: BaseException | None) -> _ExcInfo:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


class GuardedBlock(Generic[T]):
    """A block of an attempt: for ``async with`` in a coroutine, for ``with`` in a plain function."""

    def __init__(
        self,
        name: str,
        host: BlockHost,
        blocks: BlockTracker,
        make_transaction: Callable[[Any], T],
        middleware: BlockMiddleware | None = None,
    ) -> None:
        blocks.request(name)
        self._name = name
        self._host = host
        self._blocks = blocks
        self._make_transaction = make_transaction
        self._middleware = middleware
        self._entered = False
        self._generation = forks.generation
        self._async: AbstractAsyncContextManager[AsyncStoreTransaction] | None = None
        self._sync: AbstractContextManager[StoreTransaction] | None = None
        self._transaction: Any = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._layers = AsyncExitStack()
        self._layers_in_thread = ExitStack()

    # --- overridden by the block of complete() ------------------------------------------------------------------------

    def _finish_requested(self) -> Finish | None:
        """Return the finish to write before the commit."""
        return None

    def _missing_finish_error(self) -> Exception | None:
        """Return why the block must not commit, although its body raised nothing."""
        return None

    # --- sync and async -----------------------------------------------------------------------------------------------

    def _enter_once(self) -> None:
        if self._entered:
            raise CompletionMisuseError(f"the block of attempt.{self._name}() was entered twice")
        self._host.check_process()
        self._blocks.enter(self._name)
        self._entered = True

    def _end_child(self) -> None:
        if forks.generation != self._generation:
            forks.end_child()

    def _on_begun(self, transaction: Any) -> T:
        if transaction.locks_job:
            self._host.pause_renewal(transaction.abort)
        self._transaction = transaction
        return self._make_transaction(transaction)

    def _on_committed(self, finish: Finish | None, result: FinishResult | None) -> None:
        if finish is not None and result is not None:
            self._blocks.leave(finished=True)
            self._host.committed(finish, result)
        else:
            self._end_without_finish(None)

    def _end_without_finish(self, indeterminate: Finish | None) -> None:
        self._blocks.leave()
        self._host.end_block(indeterminate)

    # --- in a coroutine -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> T:
        self._host.check_event_loop()
        self._enter_once()
        self._event_loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._async = self._host.begin()
        try:
            transaction = self._on_begun(await self._async.__aenter__())
        except BaseException:
            self._blocks.leave()
            raise
        try:
            for layer in self._middleware.layers(transaction) if self._middleware else ():
                await self._layers.enter_async_context(layer)
        except BaseException as error:
            await self._close_shielded(await self._exit_layers(error))
            raise
        return transaction

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit) and not self._host.in_event_loop():
            self._close_elsewhere(error)
            return
        block_error = await self._exit_layers(error or self._missing_finish_error())
        await self._close_shielded(block_error)
        if block_error is not None and block_error is not error:
            raise block_error

    async def _exit_layers(self, error: BaseException | None) -> BaseException | None:
        """Leave the middlewares, in the handler's own task, and return the error of the block, if there is one.

        A child that was forked in the block, or by a middleware, ends here.
        """
        self._end_child()
        try:
            await self._layers.__aexit__(*_info(error))
        except BaseException as raised:
            return raised
        finally:
            self._end_child()
        return error

    async def _close_shielded(self, error: BaseException | None) -> None:
        task = asyncio.create_task(forks.guarded(self._close, error))
        self._host.closing(task)
        # The garbage collector closes coroutines that were dropped while another task runs, and waits for nothing.
        if not isinstance(error, GeneratorExit) or asyncio.current_task() is self._task:
            await asyncio.shield(task)

    def _close_elsewhere(self, error: GeneratorExit) -> None:
        """Close the block of a coroutine that was not run to its end, where the garbage collector happens to close it.

        That may be in any thread, and in the event loop of somebody else. Its middlewares are not left: nobody can wait
        for them.
        """
        loop = self._event_loop
        if loop is not None and loop.is_running():
            with suppress(RuntimeError):  # It was closed just now.
                asyncio.run_coroutine_threadsafe(forks.guarded(self._close, error), loop)
                return
        self._transaction.abort()

    async def _close(self, error: BaseException | None) -> None:
        assert self._async is not None
        finish = self._finish_requested() if error is None else None
        result: FinishResult | None = None
        try:
            try:
                if finish is not None:
                    finish = await self._host.finish_to_write(finish)
                    with self._host.settling(finish):
                        result = await self._transaction.finish(finish, last=True)
            except BaseException as failure:
                await self._async.__aexit__(*_info(failure))
                raise
            await self._async.__aexit__(*_info(error))
        except BaseException as failure:
            self._end_without_finish(finish if isinstance(failure, StateUnavailableError) else None)
            raise
        self._on_committed(finish, result)

    # --- in a thread --------------------------------------------------------------------------------------------------

    def __enter__(self) -> T:
        if _in_event_loop():
            raise CompletionMisuseError(f"in a coroutine, use: async with attempt.{self._name}() as tx")
        self._enter_once()
        self._sync = self._host.begin_in_thread()
        try:
            transaction = self._on_begun(self._sync.__enter__())
        except BaseException:
            self._blocks.leave()
            raise
        try:
            for layer in self._middleware.layers_in_thread(transaction) if self._middleware else ():
                self._layers_in_thread.enter_context(layer)
        except BaseException as error:
            self._close_in_thread(self._exit_layers_in_thread(error))
            raise
        return transaction

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block_error = self._exit_layers_in_thread(error or self._missing_finish_error())
        self._close_in_thread(block_error)
        if block_error is not None and block_error is not error:
            raise block_error

    def _exit_layers_in_thread(self, error: BaseException | None) -> BaseException | None:
        self._end_child()
        try:
            self._layers_in_thread.__exit__(*_info(error))
        except BaseException as raised:
            return raised
        finally:
            self._end_child()
        return error

    def _close_in_thread(self, error: BaseException | None) -> None:
        assert self._sync is not None
        finish = self._finish_requested() if error is None else None
        result: FinishResult | None = None
        try:
            try:
                if finish is not None:
                    finish = self._host.finish_to_write_in_thread(finish)
                    with self._host.settling(finish):
                        result = self._transaction.finish(finish, last=True)
            except BaseException as failure:
                self._sync.__exit__(*_info(failure))
                raise
            self._sync.__exit__(*_info(error))
        except BaseException as failure:
            self._end_without_finish(finish if isinstance(failure, StateUnavailableError) else None)
            raise
        self._on_committed(finish, result)


R = TypeVar("R")


class Transaction(GuardedTransaction, Generic[R]):
    """An open ``complete()`` block: the connection of the transaction, and ``finish``."""

    def __init__(self, host: BlockHost, transaction: StoreTransaction | AsyncStoreTransaction) -> None:
        super().__init__(transaction)
        self._host = host
        self.finish_requested: Finish | None = None

    def finish(self, outcome: Outcome[R]) -> _Finished[R]:
        """Set the outcome of the job, an output or any other. It is written when the block ends. Return the result.

        Raises:
            CompletionMisuseError: it was called before.
            PayloadError: the output cannot be stored.
        """
        if self.finish_requested is not None:
            raise CompletionMisuseError("tx.finish was called twice")
        self.finish_requested = self._host.finish(outcome)
        return _Finished(outcome)


class Completion(GuardedBlock[Transaction[R]]):
    """The block of ``attempt.complete()``: for ``async with`` in a coroutine, for ``with`` in a plain function."""

    def __init__(self, host: BlockHost, blocks: BlockTracker, middleware: BlockMiddleware | None = None) -> None:
        super().__init__("complete", host, blocks, self._make_completion, middleware)
        self._completion: Transaction[R] | None = None

    def _make_completion(self, transaction: StoreTransaction | AsyncStoreTransaction) -> Transaction[R]:
        self._completion = Transaction(self._host, transaction)
        return self._completion

    def _finish_requested(self) -> Finish | None:
        return None if self._completion is None else self._completion.finish_requested

    def _missing_finish_error(self) -> Exception | None:
        if self._finish_requested() is None:
            return CompletionMissingError("the complete() block ended without tx.finish(...): it was rolled back")
        return None
