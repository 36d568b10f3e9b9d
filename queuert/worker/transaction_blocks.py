"""The transactions of an attempt: prepare, complete, and what a handler sees of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
)
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from queuert.errors import CompletionMissingError, CompletionMisuseError, StateUnavailableError
from queuert.new_chain import HasTypeNames
from queuert.outcomes import Outcome, _Finished
from queuert.state import AsyncStoreTransaction, StoreTransaction
from queuert.state.types import Finish, FinishResult

if TYPE_CHECKING:
    from queuert.worker.attempt import AbortSignal

T = TypeVar("T", bound="GuardedTransaction")


class BlockHost(Protocol):
    """What the worker does for the blocks of an attempt."""

    @property
    def job_types(self) -> HasTypeNames:
        """The job types of the worker's client."""
        ...

    def check_event_loop(self) -> None:
        """Raise CompletionMisuseError unless the worker's own event loop runs here."""
        ...

    def worker_stopping(self) -> bool:
        """Whether the worker has been asked to stop."""
        ...

    def progressed(self, progress: str) -> None:
        """This is how far the attempt is, as stored. From any thread; waits for nothing."""
        ...

    def finish(self, outcome: Any) -> Finish:
        """How the attempt ends with this outcome."""
        ...

    async def apply_after_attempt(self, finish: Finish) -> Finish:
        """The finish as the hook after the attempt leaves it."""
        ...

    def apply_after_attempt_in_thread(self, finish: Finish) -> Finish:
        """The same, for a thread."""
        ...

    def begin(self) -> AbstractAsyncContextManager[AsyncStoreTransaction]:
        """A transaction that holds the job, for a coroutine."""
        ...

    def begin_in_thread(self) -> AbstractContextManager[StoreTransaction]:
        """A transaction that holds the job, for a thread."""
        ...

    def hold(self, cut: Callable[[], None]) -> None:
        """The transaction holds the job now: its lease is not renewed meanwhile. ``cut`` ends its connection."""
        ...

    def closing(self, task: asyncio.Task[None]) -> None:
        """An asynchronous block ends in this task, which is carried through even when the handler is cancelled."""
        ...

    def committed(self, finish: Finish, result: FinishResult) -> None:
        """The finish stands."""
        ...

    def settling(self, finish: Finish) -> AbstractContextManager[Any]:
        """Around the write of the finish, and its commit."""
        ...

    def end_block(self, doubtful: Finish | None) -> None:
        """The transaction is over and the job has no finish: the lease counts again.

        Or it has this one: the answer to its commit was lost, and the store could not be asked.
        """
        ...


class GuardedTransaction:
    """An open ``prepare()`` or ``transaction()`` block.

    Attributes:
        connection: the store's own connection, inside the transaction: for Postgres ``psycopg.AsyncConnection`` in a
            coroutine, ``psycopg.Connection`` in a plain function; for SQLite a ``sqlite3.Connection``. Commit and
            rollback are the block's; Postgres' ``transaction()`` makes savepoints. Redis has none: there it raises
            UnsupportedConnectionError.
    """

    def __init__(self, held: StoreTransaction | AsyncStoreTransaction) -> None:
        self._held = held

    @property
    def connection(self) -> Any:
        return self._held.connection


class BlockMiddleware(Protocol):
    """What is entered inside a block, right after it began, and left before it commits."""

    def layers(self, transaction: Any) -> list[AbstractAsyncContextManager[Any]]:
        """For a coroutine, the outermost first."""
        ...

    def layers_in_thread(self, transaction: Any) -> list[AbstractContextManager[Any]]:
        """For a thread, the outermost first."""
        ...


class BlockTracker:
    """Which blocks of an attempt were asked for, and which one is open: one at a time."""

    __slots__ = ("_abort", "_ended", "_open", "_requested")

    def __init__(self, abort: AbortSignal) -> None:
        self._abort = abort
        self._requested: set[str] = set()
        self._open: str | None = None
        self._ended = False

    def ask(self, name: str) -> None:
        """A method of the attempt was called.

        Raises:
            CompletionMisuseError: it may be called once, or not any more.
            LeaseLostError: the attempt must stop.
        """
        self._check_not_ended(name)
        if name == "prepare" and "complete" in self._requested:
            raise CompletionMisuseError("attempt.prepare() was called after attempt.complete()")
        if name != "transaction" and name in self._requested:
            raise CompletionMisuseError(f"attempt.{name}() was called twice")
        self._abort.raise_if_set()
        self._requested.add(name)

    def enter(self, name: str) -> None:
        """A block is about to begin.

        Raises:
            CompletionMisuseError: another one is open, or the job has its finish.
        """
        self._check_not_ended(name)
        if self._open is not None:
            raise CompletionMisuseError(
                f"attempt.{name}() inside attempt.{self._open}(): one block at a time; "
                "tx.connection.transaction() makes savepoints"
            )
        self._open = name

    def leave(self, *, ended: bool = False) -> None:
        """The block is over; perhaps the job has its finish."""
        self._open = None
        self._ended = self._ended or ended

    def _check_not_ended(self, name: str) -> None:
        if self._ended and name != "complete":
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
    """What a method of the attempt returns: for ``async with`` in a coroutine, for ``with`` in a plain function."""

    def __init__(
        self,
        name: str,
        host: BlockHost,
        blocks: BlockTracker,
        opened: Callable[[Any], T],
        surroundings: BlockMiddleware | None = None,
    ) -> None:
        blocks.ask(name)
        self._name = name
        self._host = host
        self._blocks = blocks
        self._opened = opened
        self._surroundings = surroundings
        self._used = False
        self._async: AbstractAsyncContextManager[AsyncStoreTransaction] | None = None
        self._sync: AbstractContextManager[StoreTransaction] | None = None
        self._held: Any = None
        self._layers = AsyncExitStack()
        self._layers_in_thread = ExitStack()

    # --- what the block of complete() adds ----------------------------------------------------------------------------

    def _finish_requested(self) -> Finish | None:
        """The finish to be written before the commit."""
        return None

    def _missing(self) -> Exception | None:
        """Why the block may not commit although it ended well."""
        return None

    # --- sync and async -----------------------------------------------------------------------------------------------

    def _use(self) -> None:
        if self._used:
            raise CompletionMisuseError(f"the block of attempt.{self._name}() was entered twice")
        self._blocks.enter(self._name)
        self._used = True

    def _begun(self, held: Any) -> T:
        if held.locks_job:
            self._host.hold(held.abort)
        self._held = held
        return self._opened(held)

    def _settle(self, finish: Finish | None, result: FinishResult | None) -> None:
        if finish is not None and result is not None:
            self._blocks.leave(ended=True)
            self._host.committed(finish, result)
        else:
            self._let_go(None)

    def _let_go(self, doubtful: Finish | None) -> None:
        self._blocks.leave()
        self._host.end_block(doubtful)

    # --- in a coroutine -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> T:
        self._host.check_event_loop()
        self._use()
        self._async = self._host.begin()
        try:
            transaction = self._begun(await self._async.__aenter__())
        except BaseException:
            self._blocks.leave()
            raise
        try:
            for layer in self._surroundings.layers(transaction) if self._surroundings else ():
                await self._layers.enter_async_context(layer)
        except BaseException as error:
            await self._end(await self._left(error))
            raise
        return transaction

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = await self._left(error or self._missing())
        await self._end(left)
        if left is not None and left is not error:
            raise left

    async def _left(self, error: BaseException | None) -> BaseException | None:
        """Leave the surroundings, in the handler's own task; what goes on as the block's error."""
        try:
            await self._layers.__aexit__(*_info(error))
        except BaseException as raised:
            return raised
        return error

    async def _end(self, error: BaseException | None) -> None:
        task = asyncio.create_task(self._close(error))
        self._host.closing(task)
        await asyncio.shield(task)

    async def _close(self, error: BaseException | None) -> None:
        assert self._async is not None
        finish = self._finish_requested() if error is None else None
        result: FinishResult | None = None
        try:
            try:
                if finish is not None:
                    finish = await self._host.apply_after_attempt(finish)
                    with self._host.settling(finish):
                        result = await self._held.finish(finish, last=True)
            except BaseException as failure:
                await self._async.__aexit__(*_info(failure))
                raise
            await self._async.__aexit__(*_info(error))
        except BaseException as failure:
            self._let_go(finish if isinstance(failure, StateUnavailableError) else None)
            raise
        self._settle(finish, result)

    # --- in a thread --------------------------------------------------------------------------------------------------

    def __enter__(self) -> T:
        if _in_event_loop():
            raise CompletionMisuseError(f"in a coroutine, use: async with attempt.{self._name}() as tx")
        self._use()
        self._sync = self._host.begin_in_thread()
        try:
            transaction = self._begun(self._sync.__enter__())
        except BaseException:
            self._blocks.leave()
            raise
        try:
            for layer in self._surroundings.layers_in_thread(transaction) if self._surroundings else ():
                self._layers_in_thread.enter_context(layer)
        except BaseException as error:
            self._close_in_thread(self._left_in_thread(error))
            raise
        return transaction

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = self._left_in_thread(error or self._missing())
        self._close_in_thread(left)
        if left is not None and left is not error:
            raise left

    def _left_in_thread(self, error: BaseException | None) -> BaseException | None:
        try:
            self._layers_in_thread.__exit__(*_info(error))
        except BaseException as raised:
            return raised
        return error

    def _close_in_thread(self, error: BaseException | None) -> None:
        assert self._sync is not None
        finish = self._finish_requested() if error is None else None
        result: FinishResult | None = None
        try:
            try:
                if finish is not None:
                    finish = self._host.apply_after_attempt_in_thread(finish)
                    with self._host.settling(finish):
                        result = self._held.finish(finish, last=True)
            except BaseException as failure:
                self._sync.__exit__(*_info(failure))
                raise
            self._sync.__exit__(*_info(error))
        except BaseException as failure:
            self._let_go(finish if isinstance(failure, StateUnavailableError) else None)
            raise
        self._settle(finish, result)


R = TypeVar("R")


class Transaction(GuardedTransaction, Generic[R]):
    """An open ``complete()`` block: the connection of the transaction, and ``finish``."""

    def __init__(self, host: BlockHost, held: StoreTransaction | AsyncStoreTransaction) -> None:
        super().__init__(held)
        self._host = host
        self.finish_requested: Finish | None = None

    def finish(self, outcome: Outcome[R]) -> _Finished[R]:
        """Say how the job ends: an output, or any other outcome. It is written when the block ends; return the result.

        Raises:
            CompletionMisuseError: it was called before.
            PayloadError: the output cannot be stored.
        """
        if self.finish_requested is not None:
            raise CompletionMisuseError("tx.finish was called twice")
        self.finish_requested = self._host.finish(outcome)
        return _Finished(outcome)


class Completion(GuardedBlock[Transaction[R]]):
    """What ``attempt.complete()`` returns: for ``async with`` in a coroutine, for ``with`` in a plain function."""

    def __init__(self, host: BlockHost, blocks: BlockTracker, surroundings: BlockMiddleware | None = None) -> None:
        super().__init__("complete", host, blocks, self._make, surroundings)
        self._transaction: Transaction[R] | None = None

    def _make(self, held: StoreTransaction | AsyncStoreTransaction) -> Transaction[R]:
        self._transaction = Transaction(self._host, held)
        return self._transaction

    def _finish_requested(self) -> Finish | None:
        return None if self._transaction is None else self._transaction.finish_requested

    def _missing(self) -> Exception | None:
        if self._finish_requested() is None:
            return CompletionMissingError("the complete() block ended without tx.finish(...): it was rolled back")
        return None
