"""A synchronous store behind the asynchronous contract: each call on a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from queuert.state._asyncio import finish_despite_cancel
from queuert.state.async_store import AsyncStore, AsyncStoreTransaction
from queuert.state.sync_store import Store, StoreTransaction
from queuert.state.types import ClaimedJob, Finish, FinishResult, NewJob, PoolUse, StartedJob, StoreWarning

_T = TypeVar("_T")

_TIMEOUT = 0.05
"""Seconds in which the event loop is to come for a transaction that has begun, the first time."""


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
        self.answered = True
        """Whether the event loop came for the last transaction that was begun for it."""

    def submit(self, function: Callable[[], _T]) -> asyncio.Future[_T]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="queuert-store")
        return asyncio.get_running_loop().run_in_executor(self._pool, function)

    def end(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)


class _ThreadedStore:
    """Every operation of the store, as a coroutine function of the same name and arguments."""

    def __init__(self, store: Store, threads: _Threads) -> None:
        self._store = store
        self._threads = threads

    @property
    def pool_use(self) -> PoolUse | None:
        """What the pool of connections is doing."""
        return self._store.pool_use

    @property
    def risks(self) -> Sequence[StoreWarning]:
        """What may become of jobs in the store."""
        return self._store.risks

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)

        async def call(*values: Any, **named: Any) -> Any:
            under_way = self._threads.submit(lambda: operation(*values, **named))
            if named.get("connection") is None:
                return await under_way
            # It writes in the caller's transaction, who rolls back when this was cancelled.
            return await finish_despite_cancel(under_way)

        return call

    async def start_parts(self, parts: Iterable[Sequence[NewJob]]) -> list[StartedJob]:
        # Made here: what makes them is the caller's.
        jobs = [job for part in parts for job in part]
        return await self._threads.submit(lambda: self._store.start_jobs(jobs))

    async def open(self) -> None:
        try:
            await finish_despite_cancel(self._threads.submit(self._store.open))
        except BaseException:
            # Who does not get an open store does not close one.
            await self.aclose()
            raise

    async def aclose(self) -> None:
        try:
            await finish_despite_cancel(self._threads.submit(self._store.close))
        finally:
            self._threads.end()

    def transaction(self, job: ClaimedJob) -> _ThreadedTransaction:
        return _ThreadedTransaction(lambda: self._store.transaction(job), self._threads)


class _Handoff:
    """A transaction that a thread has begun, for an event loop that may not come for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._settled = threading.Event()
        self._taken = False

    def take(self) -> bool:
        """Take it, in the event loop; False if it was withdrawn."""
        return self._settle(taken=True)

    def withdraw(self) -> bool:
        """Let nobody take it any more; False if it was taken."""
        return self._settle(taken=False)

    def _settle(self, *, taken: bool) -> bool:
        with self._lock:
            if self._settled.is_set():
                return self._taken is taken
            self._taken = taken
            self._settled.set()
            return True

    def is_taken_within(self, seconds: float) -> bool:
        """Wait in the thread; what nobody takes in that time is withdrawn."""
        self._settled.wait(seconds)
        return not self.withdraw()


class _ThreadedTransaction(AsyncStoreTransaction):
    """An asynchronous transaction made of a synchronous one.

    While a handler blocks the event loop, nobody comes for a transaction that has begun, and it may hold what everybody
    needs. So one that is not come for is rolled back, as nothing was written in it, and begun again when the event loop
    goes on. For the same reason the last finish is committed by the thread that writes it.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[StoreTransaction]], threads: _Threads) -> None:
        self._make = make
        self._threads = threads
        self._block: AbstractContextManager[StoreTransaction] | None = None
        self._entered: StoreTransaction | None = None
        self._left = False

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

        def write() -> FinishResult:
            result = transaction.finish(finish, last=last)
            if last:
                self._leave(None)
            return result

        return await finish_despite_cancel(self._threads.submit(write))

    # --- the beginning ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        timeout = _TIMEOUT
        while not await self._begun(timeout):
            self._threads.answered = True
            # An event loop that is always this slow must get its transaction as well.
            timeout *= 2
        return self

    async def _begun(self, timeout: float) -> bool:
        """Begin; False if nobody could come for it in time."""
        loop = asyncio.get_running_loop()
        offer = _Handoff()
        taken: asyncio.Future[bool] = loop.create_future()

        def take(begun: StoreTransaction) -> None:
            self._threads.answered = True
            if offer.take():
                self._entered = begun
                _settle(taken, True)

        under_way = self._threads.submit(lambda: self._offer(loop, offer, take, timeout))
        under_way.add_done_callback(lambda ended: _pass_on(ended, taken))
        try:
            return await taken
        except asyncio.CancelledError as error:
            if not offer.withdraw():
                self._undo(error)
            raise

    def _offer(
        self,
        loop: asyncio.AbstractEventLoop,
        offer: _Handoff,
        take: Callable[[StoreTransaction], None],
        timeout: float,
    ) -> bool:
        """Begin in a thread, and hand it to the event loop; False if that did not come, and nothing is open."""
        self._block = self._make()
        transaction = self._block.__enter__()
        with suppress(RuntimeError):  # The event loop is closed: nobody will come.
            loop.call_soon_threadsafe(take, transaction)
        if offer.is_taken_within(timeout if self._threads.answered else 0.0):
            return True
        self._threads.answered = False
        self._leave(_HandoffTimeout())
        self._left = False
        return False

    def _undo(self, error: BaseException) -> None:
        """Who came for it does not want it any more: it must not hold its job, or the store, for ever."""
        finish = self._threads.submit(lambda: self._leave(error))
        finish.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    # --- the end ------------------------------------------------------------------------------------------------------

    def _leave(self, error: BaseException | None) -> bool | None:
        assert self._block is not None
        self._left = True
        kind = None if error is None else type(error)
        return self._block.__exit__(kind, error, None if error is None else error.__traceback__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._left:
            return None
        return await finish_despite_cancel(self._threads.submit(lambda: self._leave(error)))


class _HandoffTimeout(Exception):
    """What rolls a transaction back that nobody came for."""


def _settle(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


def _pass_on(ended: asyncio.Future[bool], to: asyncio.Future[bool]) -> None:
    """Tell who waits for a transaction that it could not begin, or was not come for."""
    error = None if ended.cancelled() else ended.exception()
    if error is not None and not to.done():
        to.set_exception(error)
    elif not ended.cancelled() and error is None:
        _settle(to, ended.result())
