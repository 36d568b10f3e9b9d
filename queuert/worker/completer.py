"""Writes the finishes of attempts: what is ready goes together, many jobs a statement."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar

from queuert.errors import StateError, StateUnavailableError
from queuert.observability.adapter import Observers
from queuert.observability.events import StoreCallFailed
from queuert.policies import Backoff
from queuert.state.async_store import AsyncStore
from queuert.state.types import Finish, FinishResult, payload_characters
from queuert.worker.finishes import presumed
from queuert.worker.supervisor import SupervisedLoop

_LARGEST_BATCH = 512
_LARGEST_CHARACTERS = 16 * 1024 * 1024
"""Of the texts that the finishes of one statement bring. A worker has three to four times that in memory for each
statement under way, and its event loop stands still while one is made."""

_CONCURRENT_FLUSHES = 2
"""Statements under way at once: the client prepares one while the server works on the other."""

_MANY = 400
_TIMEOUT = 0.05
"""While so many finishes are being written, fewer wait for them and go with the next: a statement and its commit cost
as much for ten as for a hundred. But they wait for so many seconds at most, lest that statement hangs.
"""


_HEAVY = 1024 * 1024
_MOST_BREAKS = 3
"""A finish of so many characters may break the connection of its own statement so often, while the store answers
others, before it is refused: the server, or the way to it, does not take it."""


class FinishListener(Protocol):
    """Whoever has a finish to be written, and does not wait for it."""

    def on_retry(self) -> None:
        """The store could not be reached, or could not decide yet."""
        ...

    def refused(self, finish: Finish, error: Exception) -> None:
        """The store refuses this very finish, or the worker stopped first (StateUnavailableError)."""
        ...


A = TypeVar("A", bound=FinishListener)


Written: TypeAlias = tuple[A, Finish, FinishResult]
"""A finish about which the store has decided, and whose it is."""


class _Pending(Generic[A]):
    """A finish to be written."""

    __slots__ = ("author", "breaks", "decided", "finish", "future", "indeterminate", "lock_retries", "size")

    def __init__(self, finish: Finish, author: A | None, future: asyncio.Future[FinishResult] | None = None) -> None:
        self.finish = finish
        self.author = author
        self.future = future
        self.size = payload_characters(finish)
        self.lock_retries = 0
        self.decided = False
        self.indeterminate = False
        """It was asked for, and the answer was lost."""
        self.breaks = 0
        """How often a statement of its own broke the connection, one time after the other, though the store answered
        others: no other goes with it then."""

    @property
    def is_wanted(self) -> bool:
        """Whether anybody still wants to know of it."""
        return not self.decided and (self.future is None or not self.future.done())

    def go_on(self) -> None:
        """It will be asked for again."""
        if self.author is not None:
            self.author.on_retry()

    def fail(self, error: Exception) -> None:
        """It is not written."""
        self.decided = True
        if self.author is not None:
            self.author.refused(self.finish, error)
        elif self.future is not None and not self.future.done():
            self.future.set_exception(error)


class Completer(Generic[A]):
    """Groups finishes without waiting for more: what came in while a statement was under way goes with the next.

    A finish is asked for until the store has answered: a broken connection leaves its outcome open, and asking again
    is safe, since it is written only while the lease holds, and said to be written if it was. What broke its connection
    is asked for in halves; a large finish that breaks it alone gives way to others, and is refused in the end.

    ``tell`` hears of the finishes of authors that were decided together. ``types`` are those that the worker knows.
    """

    def __init__(
        self,
        store: AsyncStore,
        tell: Callable[[Sequence[Written[A]]], None],
        *,
        types: Sequence[str] = (),
        worker: str,
        observers: Observers,
    ) -> None:
        self._store = store
        self._tell = tell
        self._types = types
        self._worker = worker
        self._observers = observers
        self._event_loop = asyncio.get_running_loop()
        self._pending: deque[_Pending[A]] = deque()
        self._being_written = 0
        self._resting: set[_Pending[A]] = set()
        """What is asked for again after a pause."""
        self.characters = 0
        """Of the texts of all finishes that are not written yet."""
        self._flush_now = asyncio.Event()
        self._timeout: asyncio.TimerHandle | None = None
        self._stopped = False
        self._locked = Backoff(initial_delay=0.05, max_delay=1.0)
        self._backoff = Backoff(initial_delay=0.05, max_delay=2.0)
        self.loops = [
            SupervisedLoop(f"completer-{lane}", self._step, worker=worker, observers=observers)
            for lane in range(1, _CONCURRENT_FLUSHES + 1)
        ]

    def start(self) -> None:
        """Begin to write."""
        for loop in self.loops:
            loop.start()

    async def stop(self) -> None:
        """Stop, after the last attempt: what is still pending is given up, and its leases will expire."""
        self._stopped = True
        try:
            # Together: each may take the time in which a driver gives up what was cancelled.
            await asyncio.gather(*(loop.stop() for loop in self.loops))
        finally:
            for one in self._resting.union(self._pending):
                self._fail(one, _too_late())
            self._resting.clear()
            self._pending.clear()
            self._maybe_flush()

    def submit(self, finish: Finish, author: A) -> None:
        """Write one finish; its author is told, in the event loop, never from within this call."""
        one = _Pending(finish, author)
        if self._stopped:
            self._event_loop.call_soon(one.fail, _too_late())
        else:
            self._pending.append(one)
            self.characters += one.size
            if len(self._pending) in (1, _MANY):
                self._maybe_flush()

    async def finish(self, finish: Finish) -> FinishResult:
        """Write one finish and wait until it is durable, or known to be lost.

        Raises:
            Exception: the store refuses this very finish: a continuation's id exists, its blocker does not.
            StateUnavailableError: the worker stopped first.
        """
        if self._stopped:
            raise _too_late()
        future: asyncio.Future[FinishResult] = self._event_loop.create_future()
        one: _Pending[A] = _Pending(finish, None, future)
        self.characters += one.size
        self._add(one)
        return await future

    def _add(self, one: _Pending[A]) -> None:
        if self._stopped:
            self._fail(one, _too_late())
        elif one.is_wanted:
            self._pending.append(one)
            self._maybe_flush()
        else:
            self._let_go(one)

    def _fail(self, one: _Pending[A], error: Exception) -> None:
        self._let_go(one)
        one.fail(error)

    def _let_go(self, one: _Pending[A]) -> None:
        """It takes no memory any more."""
        self.characters -= one.size
        one.size = 0

    def _maybe_flush(self) -> None:
        """Let what is pending be written, if that is worth a statement of its own by now."""
        if self._pending and self._being_written >= _MANY > len(self._pending):
            if self._timeout is None:  # Not anew for each that comes.
                self._delay_flush()
            return
        self._stop_waiting()
        if self._pending:
            self._flush_now.set()
        else:
            self._flush_now.clear()

    def _delay_flush(self) -> None:
        try:
            self._timeout = self._event_loop.call_later(_TIMEOUT, self._flush_now.set)
        except MemoryError:
            self._flush_now.set()
        else:
            self._flush_now.clear()

    def _stop_waiting(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    async def _step(self) -> None:
        await self._flush_now.wait()
        batch = self._taken()
        self._being_written += len(batch)
        try:
            self._stop_waiting()  # For those who are left it begins now.
            self._maybe_flush()
            if batch:
                await self._write(batch)
        except BaseException:
            self._pending.extendleft(reversed([one for one in batch if one.is_wanted and one not in self._resting]))
            raise
        finally:
            self._being_written -= len(batch)
            self._maybe_flush()

    def _taken(self) -> list[_Pending[A]]:
        """The next batch: of bounded size, and one at least."""
        pending, size = self._pending, 0
        batch: list[_Pending[A]] = []
        while pending and len(batch) < _LARGEST_BATCH:
            one = pending[0]
            size += one.size
            if batch and (size > _LARGEST_CHARACTERS or one.breaks):
                break
            batch.append(pending.popleft())
            if one.breaks:
                break
        return batch

    async def _write(self, batch: Sequence[_Pending[A]]) -> None:
        """Have the store decide about all of them; in parts, once it could not be reached with all of them."""
        left, most, failures = deque(batch), len(batch), 0
        while left:
            part = [left.popleft() for _ in range(min(most, len(left)))]
            try:
                results = await self._store.finish([one.finish for one in part], wait=False)
            except StateUnavailableError as error:
                failures += 1
                self._report(error)
                for one in part:
                    one.indeterminate = True
                if len(part) > 1 or not await self._breaks(part[0], error):
                    left.extendleft(reversed(part))
                most = max(1, len(part) // 2)
                for one in (*part, *left):
                    one.go_on()
                await asyncio.sleep(self._backoff.delay(failures))
            except Exception as error:
                # One of them is refused: alone, it harms only itself. Others may have been written before it.
                if len(part) == 1:
                    self._fail(part[0], error)
                    continue
                for one in part:
                    one.indeterminate = True
                left.extendleft(reversed(part))
                most = 1
            else:
                failures, most = 0, 2 * most
                self._decide(part, results)

    async def _breaks(self, one: _Pending[A], error: StateUnavailableError) -> bool:
        """Whether it is this finish that breaks connections, so that others go before it; in the end it is refused."""
        if one.size < _HEAVY:
            return False
        try:
            await self._store.lost_reasons([one.finish.job.lease])
        except StateError:
            one.breaks = 0
            return False
        one.breaks += 1
        if one.breaks > _MOST_BREAKS:
            message = f"a finish of {one.size:,} characters breaks the connection to the store each time: {error}"
            self._fail(one, StateError(message))
        else:
            self._rest(one, self._backoff.delay(one.breaks))
        return True

    def _decide(self, batch: Sequence[_Pending[A]], results: Sequence[FinishResult]) -> None:
        written: list[Written[A]] = []
        over = 0
        for one, result in zip(batch, results, strict=True):
            if result.pending:
                self._retry_locked(one)
                continue
            over += one.size
            one.size = 0
            if one.indeterminate:
                result = presumed(one.finish, result, self._types)
            if one.is_wanted:
                one.decided = True
                if one.author is not None:
                    written.append((one.author, one.finish, result))
                elif one.future is not None:
                    one.future.set_result(result)
        self.characters -= over
        if written:
            self._tell(written)

    def _retry_locked(self, one: _Pending[A]) -> None:
        """Ask for a finish again after a pause: a caller's transaction has its rows, and may have them for long."""
        one.lock_retries += 1
        one.go_on()
        self._rest(one, self._locked.delay(one.lock_retries))

    def _rest(self, one: _Pending[A], seconds: float) -> None:
        self._resting.add(one)
        self._event_loop.call_later(seconds, self._go_on, one)

    def _go_on(self, one: _Pending[A]) -> None:
        if one in self._resting:
            self._resting.discard(one)
            self._add(one)

    def _report(self, error: Exception) -> None:
        self._observers.emit(StoreCallFailed(worker=self._worker, operation="finish", error=str(error)))


def _too_late() -> StateUnavailableError:
    return StateUnavailableError("the worker stopped before the finish could be written")
