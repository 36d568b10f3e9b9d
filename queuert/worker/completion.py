"""The transaction of ``attempt.complete()``, in both colours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from queuert.errors import CompletionMissingError, CompletionMisuseError
from queuert.outcomes import Finished, Outcome
from queuert.state import AsyncStoreTransaction, StoreTransaction
from queuert.state.adapter import Finish, FinishResult

if TYPE_CHECKING:
    from queuert.worker.attempt import Attempt

R = TypeVar("R")


class CompletionRuntime(Protocol):
    """What the worker does for an attempt that completes itself."""

    def completion(self, attempt: Attempt[Any, R]) -> Completion[R]:
        """The one completion of the attempt."""
        ...

    def check_event_loop(self) -> None:
        """Raise CompletionMisuseError unless the worker's own event loop runs here."""
        ...

    def worker_stopping(self) -> bool:
        """Whether the worker has been asked to stop."""
        ...

    def ending(self, outcome: Any) -> Finish:
        """How the attempt ends with this outcome."""
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

    def committed(self, finish: Finish, result: FinishResult) -> None:
        """The ending stands."""
        ...

    def rolled_back(self) -> None:
        """Nothing was written: the lease counts again."""
        ...


class Transaction(Generic[R]):
    """An open ``complete()`` block.

    Attributes:
        connection: the store's own connection, inside the transaction: for Postgres ``psycopg.AsyncConnection`` in a
            coroutine, ``psycopg.Connection`` in a plain function. Its ``transaction()`` makes savepoints; commit and
            rollback are the block's.
    """

    def __init__(self, runtime: CompletionRuntime, connection: Any) -> None:
        self._runtime = runtime
        self.connection = connection
        self.finish_asked: Finish | None = None

    def finish(self, outcome: Outcome[R]) -> Finished[R]:
        """Say how the job ends: an output, or any other outcome. It is written when the block ends; return the result.

        Raises:
            CompletionMisuseError: it was called before.
            PayloadError: the output cannot be stored.
        """
        if self.finish_asked is not None:
            raise CompletionMisuseError("tx.finish was called twice")
        self.finish_asked = self._runtime.ending(outcome)
        return Finished(outcome)


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Completion(Generic[R]):
    """What ``attempt.complete()`` returns: for ``async with`` in a coroutine, for ``with`` in a plain function."""

    def __init__(self, runtime: CompletionRuntime) -> None:
        self._runtime = runtime
        self._used = False
        self._transaction: Transaction[R] | None = None
        self._async: AbstractAsyncContextManager[AsyncStoreTransaction] | None = None
        self._sync: AbstractContextManager[StoreTransaction] | None = None
        self._store_transaction: Any = None
        self.closing: asyncio.Task[None] | None = None
        """The end of an asynchronous block: it is carried through even when the handler is cancelled meanwhile."""

    def _use(self) -> None:
        if self._used:
            raise CompletionMisuseError("the block of attempt.complete() was entered twice")
        self._used = True

    def _begun(self, store_transaction: Any) -> Transaction[R]:
        self._runtime.hold(store_transaction.cut)
        self._store_transaction = store_transaction
        self._transaction = Transaction(self._runtime, store_transaction.connection)
        return self._transaction

    def _missing(self, error: BaseException | None) -> CompletionMissingError | None:
        if error is None and self._transaction is not None and self._transaction.finish_asked is None:
            return CompletionMissingError("the complete() block ended without tx.finish(...): it was rolled back")
        return None

    # --- in a coroutine -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Transaction[R]:
        self._runtime.check_event_loop()
        self._use()
        self._async = self._runtime.begin()
        return self._begun(await self._async.__aenter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        missing = self._missing(error)
        self.closing = asyncio.create_task(self._close(missing or error))
        await asyncio.shield(self.closing)
        if missing is not None:
            raise missing

    async def _close(self, error: BaseException | None) -> None:
        assert self._async is not None and self._transaction is not None
        finish = self._transaction.finish_asked
        result: FinishResult | None = None
        try:
            if error is None and finish is not None:
                try:
                    result = await self._store_transaction.finish(finish)
                except BaseException as failure:
                    await self._async.__aexit__(type(failure), failure, failure.__traceback__)
                    raise
                await self._async.__aexit__(None, None, None)
            else:
                await self._async.__aexit__(None if error is None else type(error), error, None)
        except BaseException:
            self._runtime.rolled_back()
            raise
        self._settle(finish, result)

    def _settle(self, finish: Finish | None, result: FinishResult | None) -> None:
        if finish is not None and result is not None:
            self._runtime.committed(finish, result)
        else:
            self._runtime.rolled_back()

    # --- in a thread --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Transaction[R]:
        if _in_event_loop():
            raise CompletionMisuseError("in a coroutine, use: async with attempt.complete() as tx")
        self._use()
        self._sync = self._runtime.begin_in_thread()
        return self._begun(self._sync.__enter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        missing = self._missing(error)
        self._close_in_thread(missing or error)
        if missing is not None:
            raise missing

    def _close_in_thread(self, error: BaseException | None) -> None:
        assert self._sync is not None and self._transaction is not None
        finish = self._transaction.finish_asked
        result: FinishResult | None = None
        try:
            if error is None and finish is not None:
                try:
                    result = self._store_transaction.finish(finish)
                except BaseException as failure:
                    self._sync.__exit__(type(failure), failure, failure.__traceback__)
                    raise
                self._sync.__exit__(None, None, None)
            else:
                self._sync.__exit__(None if error is None else type(error), error, None)
        except BaseException:
            self._runtime.rolled_back()
            raise
        self._settle(finish, result)
