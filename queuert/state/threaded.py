"""Makes an async store of a sync one: each call runs in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from enum import Enum
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from queuert.errors import StateUnavailableError
from queuert.state._asyncio import async_turn, finish_despite_cancel
from queuert.state.async_store import AsyncStore, AsyncStoreTransaction
from queuert.state.steps import NewStep, StepRecord
from queuert.state.sync_store import Store, StoreTransaction
from queuert.state.types import ClaimedJob, Finish, FinishResult, NewJob, PoolUse, StartedJob, StoreWarning

_T = TypeVar("_T")
_Work = tuple[Future[Any], Callable[[], Any]]

_HANDOFF_TIMEOUT = 0.05
"""Seconds in which the event loop must take over a transaction that a thread has begun; doubled after each failure."""


def as_async(store: Store, *, threads: int) -> AsyncStore:
    """Return an :class:`~queuert.state.AsyncStore` that calls a :class:`~queuert.state.Store` in threads.

    Each call occupies a thread until it returns, also while it waits for a lock; calls beyond ``threads`` wait for a
    thread. Whoever has a transaction never waits for the threads of those who wait for it. If the caller is cancelled,
    the call still runs to completion.
    """
    return cast("AsyncStore", _ThreadedStore(store, _Threads(threads)))


class _Use(Enum):
    """What a thread is for. Each use has threads of its own: all of one use may wait for what another one does."""

    CALL = "call"
    """A call with a transaction of its own."""
    BEGIN = "begin"
    """The beginning of a transaction, which waits for its turn."""
    BEGUN = "begun"
    """What is done in a transaction that has begun, the caller's too, and its end. The others wait for it."""


_BEGUN = 4_096
"""Threads for transactions that have begun. As many are used as have a call under way at a time."""


class _Crew:
    """Daemon threads that take calls from one queue, as many as had a call at once, but at most ``most``.

    No executor of ``concurrent.futures``: that refuses calls once the main thread has ended, while a worker in another
    thread still needs its store, to write what its handlers return and to stop. For the same reason the first thread
    starts before there is a call: from Python 3.12 on, none can be started then.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._idle = deque[None]()
        """As many as there are threads without a call; more if all threads have started and calls have waited."""
        self._count = 0
        self._missing = 0
        """Threads that could not start, though there was a call for each."""
        self._lock = threading.RLock()
        """Reentrant: while a thread starts, the garbage collector may close coroutines, and these call the store."""
        self._start_another()
        self._idle.append(None)

    def submit(self, function: Callable[[], _T]) -> Future[_T]:
        """Call it in a thread. A future that is cancelled before a thread takes it is not called."""
        try:
            self._idle.pop()
        except IndexError:
            if not self._start_another():
                self._missing += 1
        else:
            # A thread is idle; or it is the call of a missing thread that has ended, and all are at work.
            if self._missing and self._start_another():
                self._missing -= 1
        future = Future[_T]()
        self._work.put((future, function))
        return future

    def _start_another(self) -> bool:
        """Whether it has started, or all that are allowed have."""
        with self._lock:
            if self._count < self._most:
                name = f"{self._name}_{self._count}"
                self._count += 1  # First: this may be called again meanwhile, see _lock.
                try:
                    threading.Thread(target=_serve, args=(self._work, self._idle), name=name, daemon=True).start()
                except BaseException as error:
                    self._count -= 1
                    # The interpreter ends, or the system has no more threads: calls wait for those that there are.
                    if not self._count or not isinstance(error, RuntimeError):
                        raise
                    return False
            return True

    def end(self) -> None:
        """Let the threads end after the calls that wait now."""
        with self._lock:
            count, self._count = self._count, 0
        for _ in range(count):
            self._work.put(None)

    def __del__(self) -> None:
        """Let the threads of a store end that was dropped, and not closed."""
        self.end()


def _serve(work: SimpleQueue[_Work | None], idle: deque[None]) -> None:
    # It must not know its crew, which ends when nobody else knows it.
    while (taken := work.get()) is not None:
        future, function = taken
        if not future.set_running_or_notify_cancel():
            idle.append(None)
        else:
            # It is idle before anybody knows the result: whoever makes the next call then needs no other thread.
            try:
                result = function()
            except BaseException as error:
                idle.append(None)
                future.set_exception(error)
            else:
                idle.append(None)
                future.set_result(result)
                del result
        # What they hold is not kept until the next call; and the error refers to this frame.
        del taken, future, function


class _Threads:
    """The threads of one store. They start with its first call, end when it is closed, and start anew when it is
    reopened."""

    def __init__(self, count: int) -> None:
        self._counts = {use: _BEGUN if use is _Use.BEGUN else count for use in _Use}
        self._crews = dict[_Use, _Crew]()
        self.loop_responsive = True
        """Whether the event loop took over the last transaction that a thread had begun for it."""

    def submit(self, function: Callable[[], _T], use: _Use = _Use.CALL) -> asyncio.Future[_T]:
        return asyncio.wrap_future(self.crew(use).submit(function))

    def crew(self, use: _Use) -> _Crew:
        crews = self._crews  # Another thread may end them meanwhile.
        if not crews:
            crews = {use: _Crew(f"queuert-store-{use.value}", count) for use, count in self._counts.items()}
            self._crews = crews
        return crews[use]

    def end(self) -> None:
        crews, self._crews = self._crews, {}
        for crew in crews.values():
            crew.end()


class _ThreadedStore:
    """Offers every operation of the store as a coroutine function of the same name and arguments."""

    def __init__(self, store: Store, threads: _Threads) -> None:
        self._store = store
        self._threads = threads

    @property
    def pool_use(self) -> PoolUse | None:
        """What the pool of connections is doing."""
        return self._store.pool_use

    @property
    def risks(self) -> Sequence[StoreWarning]:
        """The warnings of the store; see AsyncStore."""
        return self._store.risks

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)

        async def call(*values: Any, **named: Any) -> Any:
            own = named.get("connection") is None
            under_way = self._threads.submit(lambda: operation(*values, **named), _Use.CALL if own else _Use.BEGUN)
            if own:
                return await under_way
            # It writes in the caller's transaction. A cancelled caller rolls that back, but only after this call has
            # ended.
            return await finish_despite_cancel(under_way)

        return call

    async def start_pipelined(self, parts: Iterable[Sequence[NewJob]]) -> list[StartedJob]:
        # The iterator is the caller's code, so it runs in the caller's thread.
        jobs = list[NewJob]()
        for part in parts:
            jobs += part
            await async_turn()
        return await self._threads.submit(lambda: self._store.start_jobs(jobs))

    async def open(self) -> None:
        try:
            await finish_despite_cancel(self._threads.submit(self._store.open))
        except BaseException:
            # The caller gets no open store if it is cancelled, so it will not close one.
            await self.aclose()
            raise

    async def aclose(self) -> None:
        try:
            # Not where calls wait that it ends.
            await finish_despite_cancel(self._threads.submit(self._store.close, _Use.BEGUN))
        finally:
            self._threads.end()

    def transaction(self, job: ClaimedJob) -> _ThreadedTransaction:
        return _ThreadedTransaction(lambda: self._store.transaction(job), self._threads)


class _Handoff:
    """Hands a transaction from the thread that began it to an event loop that may be blocked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._settled = threading.Event()
        self._taken = False

    def take(self) -> bool:
        """Take the transaction, in the event loop. Returns False if the thread has withdrawn it."""
        return self._settle(taken=True)

    def withdraw(self) -> bool:
        """Withdraw the transaction. Returns False if the event loop has taken it."""
        return self._settle(taken=False)

    def _settle(self, *, taken: bool) -> bool:
        with self._lock:
            if self._settled.is_set():
                return self._taken is taken
            self._taken = taken
            self._settled.set()
            return True

    def is_taken_within(self, seconds: float) -> bool:
        """Wait in the thread until the transaction is taken; withdraw it after ``seconds``."""
        self._settled.wait(seconds)
        return not self.withdraw()


class _ThreadedTransaction(AsyncStoreTransaction):
    """An async transaction that runs a sync one in threads.

    While a handler blocks the event loop, a transaction that has begun stays idle and may hold locks that others need.
    So a transaction that the event loop does not take in time is rolled back (nothing was written in it) and begun
    again when the event loop responds. For the same reason the thread that writes the last finish also commits it.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[StoreTransaction]], threads: _Threads) -> None:
        self._make = make
        self._threads = threads
        self._block: AbstractContextManager[StoreTransaction] | None = None
        self._entered: StoreTransaction | None = None
        self._event_loop = asyncio.get_running_loop()
        self._left = False
        self._leaving = threading.Lock()
        self._aborted = False
        """Whether it was rolled back while its event loop did not run."""

    @property
    def _transaction(self) -> StoreTransaction:
        if self._entered is None:
            raise RuntimeError("the transaction must have begun: use it inside its `async with` block")
        return self._entered

    @property
    def connection(self) -> Any:
        return self._transaction.connection

    @property
    def locks_job(self) -> bool:
        """Whether the transaction locks the job."""
        return self._transaction.locks_job

    def abort(self) -> None:
        """Close the transaction's connection, from any thread."""
        self._transaction.abort()
        if not self._event_loop.is_running() and not self._left:
            # Perhaps it will not run again: then nobody leaves the block, and its locks are kept for ever.
            self._threads.crew(_Use.BEGUN).submit(lambda: self._leave(_aborted(), aborts=True))

    async def finish(self, finish: Finish, *, last: bool = False) -> FinishResult:
        transaction = self._transaction

        def write() -> FinishResult:
            result = transaction.finish(finish, last=last)
            if last:
                self._leave(None)
            return result

        return await finish_despite_cancel(self._threads.submit(write, _Use.BEGUN))

    async def record_step(self, step: NewStep) -> StepRecord:
        transaction = self._transaction
        return await finish_despite_cancel(self._threads.submit(lambda: transaction.record_step(step), _Use.BEGUN))

    # --- the beginning ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        timeout = _HANDOFF_TIMEOUT
        while not await self._begun(timeout):
            self._threads.loop_responsive = True
            # An event loop that is always this slow must get its transaction as well.
            timeout *= 2
        return self

    async def _begun(self, timeout: float) -> bool:
        """Begin the transaction. Returns False if the event loop did not take it in time."""
        loop = asyncio.get_running_loop()
        offer = _Handoff()
        taken: asyncio.Future[bool] = loop.create_future()

        def take(begun: StoreTransaction) -> None:
            self._threads.loop_responsive = True
            if offer.take():
                self._entered = begun
                _settle(taken, True)

        under_way = self._threads.submit(lambda: self._offer(loop, offer, take, timeout), _Use.BEGIN)
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
        """Begin in a thread and hand the transaction to the event loop. Returns False if it was not taken and is rolled
        back."""
        self._block = self._make()
        transaction = self._block.__enter__()
        with suppress(RuntimeError):  # The event loop is closed, so nobody will take it.
            loop.call_soon_threadsafe(take, transaction)
        if offer.is_taken_within(timeout if self._threads.loop_responsive else 0.0):
            return True
        self._threads.loop_responsive = False
        self._leave(_HandoffTimeout())
        self._left = False
        return False

    def _undo(self, error: BaseException) -> None:
        """Roll the transaction back if its caller was cancelled: otherwise it would hold locks for ever."""
        finish = self._threads.submit(lambda: self._leave(error), _Use.BEGUN)
        finish.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    # --- the end ------------------------------------------------------------------------------------------------------

    def _leave(self, error: BaseException | None, *, aborts: bool = False) -> bool | None:
        """Leave the block, once: the event loop and an abort may do so at the same time."""
        assert self._block is not None
        with self._leaving:
            if self._left:
                if self._aborted and error is None:
                    raise _aborted()
                return None
            self._aborted = aborts  # First: others read both without the lock.
            self._left = True
            kind = None if error is None else type(error)
            return self._block.__exit__(kind, error, None if error is None else error.__traceback__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._left and not self._aborted:
            return None
        return await finish_despite_cancel(self._threads.submit(lambda: self._leave(error), _Use.BEGUN))


def _aborted() -> StateUnavailableError:
    return StateUnavailableError(
        "the transaction was aborted and rolled back, and nothing of it was written: repeat the operation"
    )


class _HandoffTimeout(Exception):
    """Rolls back a transaction that the event loop did not take in time."""


def _settle(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


def _pass_on(ended: asyncio.Future[bool], to: asyncio.Future[bool]) -> None:
    """Pass the result of a failed or withdrawn begin to the future of the caller."""
    error = None if ended.cancelled() else ended.exception()
    if error is not None and not to.done():
        to.set_exception(error)
    elif not ended.cancelled() and error is None:
        _settle(to, ended.result())
