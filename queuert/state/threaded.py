"""A synchronous store behind the asynchronous contract: each call on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from queuert.state.adapter import ClaimedJob, Finish, FinishResult, StoreRisk
from queuert.state.async_store import AsyncStore, AsyncStoreTransaction
from queuert.state.sync_store import Store, StoreTransaction

_T = TypeVar("_T")


def threaded(store: Store, *, threads: int) -> AsyncStore:
    """An :class:`~queuert.state.AsyncStore` made of a :class:`~queuert.state.Store`.

    Each call takes a thread while it lasts; one that waits for a lock must not keep its holder waiting for a thread:
    ``threads`` is to be above the number of calls in flight. Who is cancelled leaves the call to its end.
    """
    return cast("AsyncStore", _ThreadedStore(store, _Threads(threads)))


class _Threads:
    """Threads from the first call on; they end with the store, and come again when that is opened again."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, function: Callable[[], _T]) -> asyncio.Future[_T]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="queuert-store")
        return asyncio.get_running_loop().run_in_executor(self._pool, function)

    def end(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)


async def _to_the_end(call: asyncio.Future[_T]) -> _T:
    """The result; a cancellation waits for the call: it writes in the caller's transaction, who then rolls back."""
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        if not call.done():
            await asyncio.wait([call])
        raise


class _ThreadedStore:
    """Every operation of the store, as a coroutine function of the same name and arguments."""

    def __init__(self, store: Store, threads: _Threads) -> None:
        self._store = store
        self._threads = threads

    @property
    def risks(self) -> Sequence[StoreRisk]:
        """What may become of jobs in the store."""
        return self._store.risks

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)

        async def call(*values: Any, **named: Any) -> Any:
            under_way = self._threads.submit(lambda: operation(*values, **named))
            return await (under_way if named.get("connection") is None else _to_the_end(under_way))

        return call

    async def aclose(self) -> None:
        await self._threads.submit(self._store.close)
        self._threads.end()

    def transaction(self, job: ClaimedJob) -> _ThreadedTransaction:
        return _ThreadedTransaction(self._store.transaction(job), self._threads)


class _ThreadedTransaction(AsyncStoreTransaction):
    """An asynchronous transaction made of a synchronous one."""

    def __init__(self, block: AbstractContextManager[StoreTransaction], threads: _Threads) -> None:
        self._block = block
        self._threads = threads
        self._entered: StoreTransaction | None = None

    @property
    def _transaction(self) -> StoreTransaction:
        if self._entered is None:
            raise RuntimeError("the transaction has not begun")
        return self._entered

    @property
    def connection(self) -> Any:
        return self._transaction.connection

    @property
    def holds(self) -> bool:
        """Whether nobody else can take the job meanwhile."""
        return self._transaction.holds

    def cut(self) -> None:
        """End the transaction's connection."""
        self._transaction.cut()

    async def finish(self, finish: Finish, *, last: bool = False) -> FinishResult:
        transaction = self._transaction
        return await _to_the_end(self._threads.submit(lambda: transaction.finish(finish, last=last)))

    async def __aenter__(self) -> Self:
        beginning = self._threads.submit(self._block.__enter__)
        try:
            self._entered = await asyncio.shield(beginning)
        except asyncio.CancelledError as cancelled:
            error = cancelled
            beginning.add_done_callback(lambda begun: self._undo(begun, error))
            raise
        return self

    def _undo(self, begun: asyncio.Future[StoreTransaction], error: BaseException) -> None:
        """Nobody waits for the beginning any more: what has begun must not hold its job, or the store, for ever."""
        if not begun.cancelled() and begun.exception() is None:
            ending = self._threads.submit(lambda: self._block.__exit__(type(error), error, None))
            ending.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await _to_the_end(self._threads.submit(lambda: self._block.__exit__(kind, error, trace)))
