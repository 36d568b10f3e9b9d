"""Writes the endings of attempts: what is ready goes together, many jobs a statement."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from queuert.errors import StateUnavailableError
from queuert.observability.adapter import Observers
from queuert.observability.events import StateFailed
from queuert.policies import Backoff
from queuert.state.adapter import Finish, FinishResult
from queuert.state.async_store import AsyncStore
from queuert.worker.supervisor import SupervisedLoop

_LARGEST_BATCH = 500
_LANES = 2
"""Statements under way at once: the client prepares one while the server works on the other."""

_Pending = tuple[Finish, "asyncio.Future[FinishResult]"]


class Completer:
    """Groups endings without waiting for more: what came in while a statement was under way goes with the next.

    An ending is asked for until the store has answered: a broken connection leaves its outcome open, and asking again
    is safe, since it is written only while the lease holds, and said to be written if it was.
    """

    def __init__(self, store: AsyncStore, *, worker: str, observers: Observers) -> None:
        self._store = store
        self._worker = worker
        self._observers = observers
        self._pending: deque[_Pending] = deque()
        self._arrived = asyncio.Event()
        self._stopped = False
        self._put_offs: WeakKeyDictionary[asyncio.Future[FinishResult], int] = WeakKeyDictionary()
        self._locked = Backoff(initial=0.05, maximum=1.0)
        self._backoff = Backoff(initial=0.05, maximum=2.0)
        self.loops = [
            SupervisedLoop(f"completer-{lane}", self._step, worker=worker, observers=observers)
            for lane in range(1, _LANES + 1)
        ]

    def start(self) -> None:
        """Begin to write."""
        for loop in self.loops:
            loop.start()

    async def stop(self) -> None:
        """Stop, after the last attempt: what is still pending is given up, and its leases will expire."""
        self._stopped = True
        for loop in self.loops:
            await loop.stop()
        while self._pending:
            _, future = self._pending.popleft()
            _fail(future, _too_late())

    async def finish(self, finish: Finish) -> FinishResult:
        """Write one ending and wait until it is durable, or known to be lost.

        Raises:
            Exception: the store refuses this very ending: a continuation's id exists, its blocker does not.
            StateUnavailableError: the worker stopped first.
        """
        if self._stopped:
            raise _too_late()
        future: asyncio.Future[FinishResult] = asyncio.get_running_loop().create_future()
        self._add((finish, future))
        return await future

    def _add(self, one: _Pending) -> None:
        if self._stopped:
            _fail(one[1], _too_late())
        elif not one[1].done():
            self._pending.append(one)
            self._arrived.set()

    async def _step(self) -> None:
        await self._arrived.wait()
        batch = [self._pending.popleft() for _ in range(min(len(self._pending), _LARGEST_BATCH))]
        if not self._pending:
            self._arrived.clear()
        if not batch:
            return
        try:
            await self._write(batch)
        except BaseException:
            self._pending.extendleft(reversed([one for one in batch if not one[1].done()]))
            self._arrived.set()
            raise

    async def _write(self, batch: Sequence[_Pending]) -> None:
        failures = 0
        while True:
            try:
                results = await self._store.finish([finish for finish, _ in batch], wait=False)
            except StateUnavailableError as error:
                failures += 1
                self._report(error)
                await asyncio.sleep(self._backoff.delay(failures))
            except Exception as error:
                await self._write_apart(batch, error)
                return
            else:
                if failures:
                    results = [_presumed(one[0], result) for one, result in zip(batch, results, strict=True)]
                self._tell(batch, results)
                return

    def _tell(self, batch: Sequence[_Pending], results: Sequence[FinishResult]) -> None:
        for one, result in zip(batch, results, strict=True):
            if result.pending:
                self._put_off(one)
            elif not one[1].done():
                one[1].set_result(result)

    def _put_off(self, one: _Pending) -> None:
        """Ask for an ending again after a pause: a caller's transaction has its rows, and may have them for long."""
        tries = self._put_offs[one[1]] = self._put_offs.get(one[1], 0) + 1
        asyncio.get_running_loop().call_later(self._locked.delay(tries), self._add, one)

    async def _write_apart(self, batch: Sequence[_Pending], error: Exception) -> None:
        # One of them is refused: alone, it harms only itself.
        if len(batch) == 1:
            _fail(batch[0][1], error)
            return
        for one in batch:
            await self._write([one])

    def _report(self, error: Exception) -> None:
        self._observers.emit(StateFailed(worker=self._worker, operation="finish", error=str(error)))


def _presumed(finish: Finish, result: FinishResult) -> FinishResult:
    """The result of an ending that was asked for again: it may have stood already, and then the store does not tell any
    more what became due by it. Without a hint it would wait for somebody's poll."""
    if not result.written:
        return result
    following = () if finish.continuation is None else (finish.continuation.type,)
    again = () if finish.kind.closes_chain or following else (finish.job.type,)
    started = (one.type for one in finish.starts)
    return replace(result, readied=tuple({*result.readied, *following, *again, *started}))


def _too_late() -> StateUnavailableError:
    return StateUnavailableError("the worker stopped before the ending could be written")


def _fail(future: asyncio.Future[FinishResult], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
